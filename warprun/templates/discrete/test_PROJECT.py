

def test_the_tank_warms_when_the_heater_is_on_and_cools_when_it_is_off():
    import numpy as np
    from warprun.random import Rng

    p, rng = env.Params(spread=0.0), Rng(*np.zeros(5, np.uint32))
    cold = hot = env.State(320.0, 320.0, 300.0)
    for _ in range(20):
        cold, _, _ = env.step(cold, 0, rng, p)
        hot, _, _ = env.step(hot, 1, rng, p)
    assert cold.tank < 320.0 < hot.tank
