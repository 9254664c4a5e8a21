

def test_the_same_seed_begins_the_same_episode_and_a_push_moves_the_carriage():
    carriage, other = env.Carriage(), env.Carriage()
    (start, _), (same, _) = carriage.reset(seed=3), other.reset(seed=3)
    pushed, _, terminated, truncated, _ = carriage.step([1.0])
    assert start.tolist() == same.tolist() and pushed[1] > start[1] and not (terminated or truncated)
