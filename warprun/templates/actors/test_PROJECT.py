

def test_a_room_that_heats_is_warmer_than_one_that_does_not():
    p = env.Params()
    rooms, rooms_sum = env.Room(5 * [18.0], 5 * [20.0], 5 * [1.0]), env.Room(90.0, 100.0, 5.0)
    on, off = (env.Room(18.0, 20.0, heats) for heats in (1.0, 0.0))
    warmer, colder = (env.warm(room, p, 2, rooms, rooms_sum)[0] for room in (on, off))
    assert warmer.temperature - colder.temperature == pytest.approx(p.dt * p.heating * p.boiler / 5)
