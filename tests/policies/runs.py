"""Settings of short runs."""

from tests.words import words

SHORT = words("""
    tuned=none stop_when_solved=false n_envs=8 concurrency.threads=1 device=cpu log.live=false log.tensorboard=false
    eval.episodes=4 eval.final_episodes=4 env.time_limit=20
""")
