

def test_the_flow_that_holds_a_level_holds_both():
    p, level = env.Params(), 0.25
    s = env.State(level, level, 0.2)
    for _ in range(50):
        s, _, overflows = env.step(s, (env.outflow(level, p) / p.pump,), p)
    assert s.upper == pytest.approx(level, rel=1e-3) and s.lower == pytest.approx(level, rel=1e-3) and not overflows
