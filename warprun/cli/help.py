"""The text of `warprun --help`."""

from __future__ import annotations

from warprun.config.registry import options

HELP = """\
warprun: reinforcement learning at very high data throughput, for environments that are scientific simulations

  warprun [train] [GROUP=NAME ...] [KEY=VALUE ...]     train an agent; makes a run folder under outputs/
  warprun -m KEY=VALUE,VALUE ... [sweep_dir=FOLDER] [launcher=local|slurm|submitit|psij|ray] [launcher.workers=2]
                                                       train every combination: on this machine, as a SLURM job array, or by another
                                                       engine; the same command over the same folder continues what is not finished
  warprun status [SWEEP|latest] [every_s=2]            the jobs of a sweep
  warprun cancel [SWEEP|latest] [trust=true]           end the jobs of a sweep that no command waits for
  warprun tune 'KEY=interval(LOW,HIGH)' ... [trials=50] [pruner=median|asha|none] [sweep_dir=FOLDER] [launcher.workers=2]
                                                       search good settings with Optuna
  warprun resume=RUN|latest [KEY=VALUE ...] [trust=true]
                                                       continue a run from its newest checkpoint
  warprun eval [RUN|latest] [episodes=1000] [greedy=true] [checkpoint=last|best] [device=auto] [seed=0] [output_root=outputs]
               [trust=true]
                                                       the mean return of a trained agent over fresh episodes
  warprun export RUN|latest FILE.onnx|FILE.pt2|FILE.npz [checkpoint=last|best] [overwrite=false] [output_root=outputs] [trust=true]
                                                       the policy as a file for other programs
  warprun play [RUN|latest] [episodes=1] [greedy=true] [checkpoint=last|best] [policy=trained|random] [record=FILE|[FILE,...]]
               [every=1] [fps=25] [device=auto] [seed=0] [output_root=outputs] [trust=true]
                                                       play episodes of a trained agent; record them as .csv or .npz, or as a film in
                                                       .gif, .mp4 or .html
  warprun play env=NAME [env.KEY=VALUE ...] policy=random [...]
                                                       the same with random actions, without a run
  warprun new NAME [--continuous|--actors|--gymnasium|--tensors|--agent]
                                                       write a project with an environment, or an algorithm, to begin from
  warprun envs                                         list the environments
  warprun check env=NAME [KEY=VALUE ...] [out=check.json]
                                                       find mistakes in an environment before training
  warprun bench [KEY=VALUE ...] [sizes=10,100,1000] [threads=1,2] [out=outputs/bench]
                                                       throughput by number of environments: table, JSON, picture
  warprun report PATH ... [by=agent,n_envs] [threshold=475] [returns=auto|eval|train] [unfinished=false] [log_x=false] [out=report]
                 [columns=NAME,...] [into=PAGE.md:MARK]
                                                       compare runs: tables and figures with intervals over seeds, as one page
  warprun data ENV                                     fetch and check the data that an environment needs
  warprun scripts FOLDER [system=slurm|pbs|lsf|flux] [overwrite=false]
                                                       copy the batch scripts of warprun to a folder, such as slurm or pbs

Groups (including your own files ./conf/GROUP/NAME.yaml)
{groups}

Keys (quote brackets, parentheses and * for the shell: 'agent.network.hidden=[64,64]' 'seed=range(0,8)')
  n_envs=1024            number of environments that run in parallel; 1e4 is 10000, auto measures which number learns fastest
  total_steps=1e7        environment steps, summed over the environments
  max_minutes=null       end after this many minutes, compilation included
  stop_when_solved=true  end as soon as an evaluation reaches env.solved_at and fresh episodes confirm it
  seed=0                 same seed, same result
  device=auto            auto, cpu, cuda or cudasim
  concurrency.threads=2  CPU threads (default: all cores)
  name=null              part of the run folder's name
  run_dir=null           the run folder itself, new or empty
  resume=auto            continue the run in run_dir if there is one, else begin it: for batch jobs that are started again
  output_root=outputs    where run folders are made
  eval.every=5%          how often to evaluate: 10s, 5min, 1e6steps, 20iterations, 5% of the run, never; so log.every, checkpoint.every
  eval.episodes=20       episodes of each evaluation; eval.final_episodes=200 eval.greedy=true
  env.params.NAME=v      a parameter of the environment
  env.randomize.NAME=[a,b]   draw a parameter uniformly for each environment and episode
  env.time_limit=500     steps of an episode at most
  agent.KEY=v            such as agent.learning_rate=1e-3 agent.gamma=0.99 agent.horizon=16 agent.network.hidden=[64,64]
  agent.groups.GROUP.KEY=v   the same for one group of actors
  tuned=none             ignore the settings that were tuned for this environment and agent

Options
  --cfg job              print the config instead of training     --info     show how it is composed
  --package agent        with --cfg job: only this part           --config-dir DIR   look up config groups in DIR first
  --version              print the version                        --help     this text
  Tab completion: eval "$(warprun -sc install=bash)"    (also zsh, fish: -sc install=fish | source)
  HYDRA_FULL_ERROR=1 or WARPRUN_TRACEBACK=1 in the environment show the traceback of an error.

Examples
  warprun env=cartpole n_envs=10000
  warprun env=pendulum agent=ppo seed=3 'agent.network.hidden=[128,128]' name=wide
  warprun -m agent=a2c,ppo seed=0,1,2 n_envs=100,10000
  warprun env=cartpole population=32
  warprun eval latest episodes=1000 greedy=false
  warprun play latest episodes=3 'record=[episodes.csv,episodes.gif]'
"""


def help_text() -> str:
    """Return the text, with the files of the config groups that are found here."""
    groups = ("env", "agent", "concurrency", "experiment")
    return HELP.format(groups="\n".join(f"  {group:12} {', '.join(options(group))}" for group in groups))
