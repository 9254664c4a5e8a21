"""Build one run from a config and drive it from its first to its last iteration."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from warprun import own_module, signals
from warprun.concurrency.team import Team
from warprun.config import kept, trust
from warprun.config.auto import is_open
from warprun.config.cadence import Moment, Recurring, parse
from warprun.config.compose import note_on_tuned
from warprun.config.networks import modules
from warprun.config.run_folder import CONFIG, SET_UP, STATUS
from warprun.config.schema import Config, to_dict
from warprun.errors import RunHasEndedError, TrainingFailed, UserError, one_line
from warprun.kernels import ahead
from warprun.learning.interfaces import Agent
from warprun.runtime import checkpoint, position, rundir
from warprun.runtime.build import Setup, make_agent, make_training_simulator, prepare, set_up, threads
from warprun.runtime.clock import PhaseClock
from warprun.runtime.evaluate import Evaluator, StoppedError
from warprun.runtime.joint import JointSimulator, connect, describe, leave, make_parts, restore_rank, set_up_rank
from warprun.runtime.limits import Limits
from warprun.runtime.orders import Order, give
from warprun.runtime.position import Position
from warprun.runtime.records.records import Records
from warprun.runtime.saver import SHARE, Saver
from warprun.runtime.sentinel import Sentinel
from warprun.runtime.shared_state import own_state
from warprun.runtime.summary import summarize
from warprun.seeds import derived_seed
from warprun.simulation.external.leading import Calls
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.simulator import Simulator
from warprun.spec_data import to_data
from warprun.state import State, restore

if TYPE_CHECKING:  # MPI is an extra
    from warprun.actors.received import ReceivedRollouts
    from warprun.actors.world import World

MUCH_CLIPPED = 0.01
"""Share of clipped observations above which a run says so."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    folder: Path
    status: str
    """solved or finished; an interrupted run raises KeyboardInterrupt, and its status.json says interrupted."""
    env_steps: int
    wall_s: float
    eval_return: float | None
    """Mean return of the last evaluation, of several groups that of `eval.group`; None if there was none."""
    eval_stderr: float | None
    """Its standard error; None for a single episode."""
    best_return: float | None
    """Mean return of the best evaluation, biased upwards because it is the best of many; None if there was none."""
    train_return: float | None
    """Mean return of the training episodes in the last record that has any; None if no episode ended."""
    metrics: dict[str, float]
    """The last value of every metric."""

    @property
    def solved(self) -> bool:
        return self.status == "solved"


def train(config: Config, world: World | Team | None = None) -> Result:
    """Train one run; `world`: with the other ranks of the run, of which this is rank 0.

    If a mistake of the user is found before training begins, UserError is raised and nothing is left behind: a folder that existed is
    empty again, one that was made for the run is removed. With `n_envs=auto` the number of environments is measured first. An
    interrupted run saves a checkpoint and raises KeyboardInterrupt.
    """
    if is_open(config):
        from warprun.runtime.auto import choose  # imports the benchmark

        config = choose(config, print)
    with signals.flagged():
        with ExitStack() as setting_up:
            with signals.requests.undisturbed():
                held, made = _make_folder(config)
                setting_up.enter_context(signals.requests.last_words(lambda name: _take_back(held.folder, made)))
            try:
                with in_all(world):
                    run, versions = _Run(config, held, world), rundir.versions()
                    with _closed_on_failure(run), signals.requests.undisturbed():
                        run.start(versions)
                with _closed_on_failure(run):
                    run.wait_for_ranks()
            except BaseException:
                _take_back(held.folder, made)
                held.release()
                raise
        return _driven(run)


def _make_folder(config: Config) -> tuple[rundir.Held, list[Path]]:
    """Return the folder of a new run, locked, and all folders that were made for it, innermost first. Raises UserError."""
    wanted = Path(config.run_dir or config.output_root)
    made = [place for place in (wanted, *wanted.parents) if not place.exists()]
    if config.run_dir:
        return rundir.claim(wanted), made
    held = rundir.create(wanted, config.name or f"{config.env.label}_{config.agent.name}")
    return held, [held.folder, *made]


def resume(config: Config, folder: Path, stored: Config, changed: Sequence[str], world: World | Team | None = None) -> Result:
    """Continue the run in `folder` from its newest checkpoint, or from its beginning if it has none; otherwise as `train`.

    `config` is what the run is built from, `stored` what its config.yaml says from now on, and `changed` the settings that differ from
    those before. The continued run takes the same steps as one that was never interrupted. Raises UserError if the run has reached its
    end, if another process trains in the folder, or if the saved state does not fit the settings; the run is then left as it was.
    """
    try:
        held = rundir.Held(folder)
    except OSError as error:
        raise UserError(f"cannot continue the run in {folder}: {error.strerror}") from None
    with signals.flagged():
        try:
            with in_all(world):
                run = _Run(config, held, world)
                with _closed_on_failure(run):
                    run.restore(stored, changed)
            with _closed_on_failure(run):
                run.wait_for_ranks()
        except BaseException:
            held.release()
            raise
        return _driven(run)


@contextmanager
def _closed_on_failure(run: _Run) -> Iterator[None]:
    """Close a run that does not begin."""
    try:
        yield
    except BaseException:
        run.close()
        raise


def _driven(run: _Run) -> Result:
    try:
        result = run.drive()
    finally:
        run.held.release()
    if signals.requests.number is not None:  # also if the run had just ended: a stop request also ends the remaining runs of a sweep
        signals.requeue(signals.requests.number)
        raise KeyboardInterrupt
    return result


def _take_back(folder: Path, made: list[Path]) -> None:
    """Remove what the set-up of a run wrote into `folder`, then the folders `made` for it unless other files are in them."""
    for path in (folder / name for name in (*SET_UP, CONFIG)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        for place in made:
            place.rmdir()


BEST = ("eval/best_return", "eval/best_env_steps")
"""Metrics that later evaluations keep."""
SILENCE_S = 10.0
"""Longest time in which the terminal shows no progress."""
LONG_ITERATION_S = 10.0
"""An iteration that takes longer than this is announced."""


class _Run:
    """A run from its first to its last iteration. Call `start` or `restore`, then `drive`."""

    def __init__(self, config: Config, held: rundir.Held, world: World | Team | None) -> None:
        self.config = config
        self.world = world
        self.received: ReceivedRollouts | None = None
        """The simulator, if it is that of a learner, whose rollouts actors make."""
        self.joint: JointSimulator | None = None
        """The simulator, if it speaks for the environments of several ranks that learn."""
        self.held = held
        self.folder = held.folder
        self.saved = checkpoint.load(self.folder) if checkpoint.exists(self.folder) else None
        self.position = Position() if self.saved is None else position.read(self.saved.meta.get("run", {}))
        self.limits = Limits(config.total_steps, config.max_minutes, self.position.began_s)
        self.boundary = self.limits.moment(self.position.boundary_s, self.position.env_steps, self.position.iterations)
        """The last completed boundary."""
        self._refuse_ended()
        self.records = Records(self.folder, to_dict(config), config.log.live, self.position.place)
        self.open: list[Simulator | Evaluator | Calls] = [Calls()]
        """What has to be closed."""
        try:
            self.setup = self._set_up()
            self.records.start({"device": f"{self.setup.device.name} ({self.setup.device.why})"})
            for note in filter(None, (note_on_tuned(config), config.origin.n_envs)):
                self.records.message(note)
            self.records.message(f"rollout and update: {self.setup.plan}")
            self.agent, self.simulator = self._make_parts()
            self.evaluator = self._evaluator(config.eval.episodes, "evaluation")
            self.final_evaluator = self._evaluator(config.eval.episodes_at_end, "final evaluation")
        except BaseException:
            self.close()
            raise
        names = list(self.simulator.trajectory.groups)
        self.returns = "return" if len(names) == 1 else f"{config.eval.group or names[0]}/return"
        """Name, below `train/` and `eval/`, of the return that decides which checkpoint is best and whether the run is solved."""
        self.sentinel = Sentinel(self.simulator, self.records.message, config.env.on_nan == "reset", self.position.replaced)
        self.clock = PhaseClock(self.setup.device.torch)
        self.metrics = dict(self.position.metrics)
        self.losses: dict[str, torch.Tensor | float] = dict(self.position.losses)
        """The metrics of the last update."""
        self.diagnosed = dict(self.position.diagnostics)
        """The diagnostics of the last rollout, if another process computed it."""
        self.told = list(self.position.told)
        self.solved = self.position.solved
        self.cadences = {
            name: Recurring(parse(f"{name}.every", settings.every), self.boundary._replace(seconds=self.position.due_s.get(name, 0.0)))
            for name, settings in (("eval", config.eval), ("checkpoint", config.checkpoint), ("log", config.log))
        }
        self.iteration_s = self.position.iteration_s
        self.saver = Saver(self.folder, config.checkpoint, self.records.message)
        self.history: list[dict[str, float]] = []
        """All records, for the summary of the learning curve at the end."""
        self.status: dict[str, object] = {"started": rundir.now()}
        self.status_lock = threading.Lock()
        """The thread that reads signals writes the last status."""

    def close(self) -> None:
        """End the records and all processes. A second call does nothing."""
        while self.open:
            self.open.pop().close()
        self.records.close()

    def _set_up(self) -> Setup:
        if not self.world:
            return set_up(self.config)
        if isinstance(self.world, Team):
            return set_up_rank(self.config, self.world)
        from warprun.runtime.roles import communicator_of

        return set_up(self.config, communicator_of(self.config, self.world))

    def _make_parts(self) -> tuple[Agent, Simulator]:
        """Return the agent, and what it gets rollouts from: its own simulator, or actors."""
        config = self.config
        if isinstance(self.world, Team):
            agent, own = make_parts(self.setup, config.n_envs, self.records.message)
            self.open.append(own)
            self.joint = JointSimulator(own, agent, self.setup.communicator)
            return agent, self.joint
        if self.world:
            from warprun.runtime.roles import make_learner

            agent, self.received = make_learner(self.setup, self.world, lambda: self.records.wall_s)
            return agent, self.received
        agent = make_agent(self.setup)
        if threads(config) > 1:
            ahead.begin()  # its kernels, while this process compiles those of the simulator
        simulator = make_training_simulator(self.setup, agent, self.records.message)
        self.open.append(simulator)
        prepare(self.setup, simulator)
        return agent, simulator

    def wait_for_ranks(self) -> None:
        """Wait until the other ranks are set up. Raises RankFailed."""
        if not self.world:
            return
        more = self.received.rollouts if self.received else self.saved.path.absolute() if self.saved else ""
        self.world.share(f"{self.folder.absolute()}\n{more}")
        with self.world.together():
            pass
        if isinstance(self.world, Team):
            connect(self.setup, self.world, self.agent)
            self.records.message(describe(self.config, self.world))
        elif self.received:
            from warprun.runtime.roles import connect as connect_learner

            connect_learner(self.setup, self.world, self.agent, self.received)
            self.records.message(self.received.describe())
        self.world.watch.last_words = lambda why: self._write_status("failed", why)

    def _refuse_ended(self) -> None:
        """Raise RunHasEndedError if a checkpoint says that there is nothing left to do; before anything is built."""
        if self.limits.reached(self.boundary, self.position.iteration_s) and not self.position.pending:
            raise RunHasEndedError(
                f"the run in {self.folder} has ended: it took {self.boundary.env_steps:,} env_steps of"
                f" total_steps={self.limits.total_steps:,}; a larger total_steps or max_minutes continues it"
            )
        if self.position.solved and self.config.stop_when_solved:
            raise RunHasEndedError(f"the run in {self.folder} has solved its environment; stop_when_solved=false continues it")

    def start(self, versions: Mapping[str, object]) -> None:
        """Write the files of a new run; `versions` are those of `rundir.versions`. Raises UserError and OSError."""
        env = self.config.env
        rundir.write_versions(self.folder, versions)
        kept.keep(self.folder, env.module, env.options, env.time_limit, self.setup.environment, self.setup.tables)
        own_module.keep(self.folder, list(modules(to_dict(self.config)["agent"])))
        self._seal(self.config)
        rundir.write_config(self.folder, to_dict(self.config))  # last: a folder with a config.yaml is a run that can be resumed

    def _seal(self, config: Config) -> None:
        """Seal the folder with the config that it gets next."""
        unsealed = trust.seal(self.folder, rundir.config_text(to_dict(config)))
        if unsealed:
            self.records.message(unsealed)

    def restore(self, stored: Config, changed: Sequence[str]) -> None:
        """Continue where the checkpoint left off; see `resume`. Raises UserError, and then nothing has changed."""
        if self.saved is not None:
            try:
                ranks = restore_rank(self.setup, self.agent, self.simulator, self.saved)
                restore(self._state_of_evaluators(), {n: tensor for n, tensor in self.saved.tensors.items() if "evaluator/" in n})
            except UserError as error:
                why = f"; changed: {', '.join(changed)}" if changed else ""
                raise UserError(f"{self.saved.path} does not fit this run: {error}{why}") from None
            if self.env_steps != self.saved.env_steps:
                raise UserError(
                    f"{self.saved.path} has {self.saved.env_steps:,} env_steps, and the simulator {self.env_steps:,} after it was restored:"
                    " its state() must contain `steps`"
                )
            checkpoint.discard_after(self.folder, self.env_steps, checkpoint.BEST)
            if ranks != self.setup.communicator.size and not self.received:
                now = self.setup.communicator.size
                told = f"{ranks} processes saved the checkpoint, now there {'is' if now == 1 else 'are'} {now}"
                self.records.message(f"{told}: all environments begin new episodes")
        self.history = self.records.cut_back()
        self._seal(stored)
        rundir.write_config(self.folder, to_dict(stored))
        former = rundir.read_status(self.folder)
        resumes = former.get("resumes")
        resumed = {"at": rundir.now(), "env_steps": self.env_steps, "changed": list(changed)}
        self.status = {
            "started": former.get("started", rundir.now()),
            "resumes": [*(resumes if isinstance(resumes, list) else []), resumed],
        }
        environment = self.setup.environment
        if isinstance(environment, ExternalEnvironment) and environment.state is None:
            self.records.message(f"{environment.title} cannot be continued in the middle of an episode: all environments begin new ones")
        self.records.message(f"continues after {self.env_steps:,} env_steps{''.join(f', {setting}' for setting in changed)}")

    @property
    def env_steps(self) -> int:
        return self.received.env_steps if self.received else self.simulator.steps * self.config.n_envs

    def drive(self) -> Result:
        """Train until a limit is reached, the environment is solved, or a signal asks the run to stop."""
        with ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(signals.requests.last_words(lambda name: self._write_status("interrupted", f"ended by {name}")))
            try:
                self._write_status("running")
                status = self._train(stack)
                self._close()
                self._write_status(status)
                self.records.finish(self._summary(), status)
            except TrainingFailed as error:
                failure = TrainingFailed(f"{error}; {checkpoint.newest(self.folder)}")
                self._write_status("failed", str(failure))
                self.records.finish(self._summary() | {"failed": str(failure)}, "failed")
                raise failure from None
            except BaseException as error:
                self._write_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", one_line(error))
                raise
        last = self.metrics.get
        return Result(
            self.folder,
            status,
            self.env_steps,
            self.records.wall_s,
            last(f"eval/{self.returns}"),
            last(f"eval/{self.returns}_stderr"),
            last("eval/best_return"),
            last(f"train/{self.returns}"),
            dict(self.metrics),
        )

    def _train(self, stack: ExitStack) -> str:
        config = self.config
        iterates, shown = not self.position.pending, self.boundary._replace(seconds=self.records.wall_s)
        logged = shown
        while True:
            began_s = self.records.wall_s
            if iterates:
                self._iterate()
                self.diagnosed = {}
            iterates = True
            now = self.limits.moment(self.records.wall_s, self.env_steps, self.boundary.iterations + 1)
            if now.iterations == 1:
                # The first iteration compiles the kernels of the update. Schedules and time limits count from its end.
                self.limits = replace(self.limits, began_s=now.seconds)
                now = self.limits.moment(now.seconds, now.env_steps, 1)
            first_here = now.iterations == self.position.iterations + 1
            self.iteration_s = 0.0 if first_here else now.seconds - began_s  # the first one compiles or loads kernels
            self._announce()
            last = self.limits.reached(now, self.iteration_s)
            if signals.requests.number is not None:
                self._save()
                return "interrupted"
            evaluates = last or self.cadences["eval"].due(now)
            if evaluates and not self._evaluate(last):
                return "interrupted"
            stop = last or (self.solved and config.stop_when_solved)
            if self.cadences["log"].due(now) or evaluates or stop:
                self._log(now, logged, evaluates)
                logged = shown = now._replace(seconds=self.records.wall_s)
            elif now.seconds - shown.seconds > SILENCE_S:
                self.records.show(now.env_steps, (now.env_steps - shown.env_steps) / (now.seconds - shown.seconds))
                shown = now
            self.boundary = now
            if stop:
                self._save()
                return "solved" if self.solved else "finished"
            if self.cadences["checkpoint"].due(now) and self._can_afford_checkpoint():
                self._save_if_possible()
                self._write_status("running")
            if first_here:
                # From here on there is something to lose.
                stack.enter_context(signals.requests.deferred())

    def _close(self) -> None:
        """End the run in all ranks."""
        if not self.world:
            return
        give(self.setup.communicator, Order.END)
        if self.received:
            self.received.close()
        else:
            leave(self.setup.communicator)
        self.world.watch.end()

    def _iterate(self) -> None:
        give(self.setup.communicator, Order.ITERATE, self.boundary.progress)
        with self.clock.phase("rollout"):
            trajectory = self.simulator.collect(self.agent.act)
        for lost in self.received.lost if self.received else ():
            self._tell_once(lost, f"the run goes on without {lost}")
        self.sentinel.after_rollout()
        with self.clock.phase("update"):
            losses = self.agent.update(trajectory, progress=self.boundary.progress)
        self.sentinel.after_update(losses)
        self.losses |= losses

    def _evaluate(self, last: bool) -> bool:
        """Evaluate the policy. If it seems solved and that would end the run, and at the end, evaluate it again with fresh episodes.

        The evaluation that reaches the bar first is the best of many, so its mean is biased upwards. The run is solved only if the mean of
        the fresh episodes minus two standard errors reaches the bar. Return False if a signal ended the evaluation; the state before it
        is then saved.
        """
        config, bar = self.config, self.config.env.solved_at
        before = {name: tensor.clone() for name, tensor in self._state_of_evaluators().items()}
        with self.clock.phase("eval"):
            try:
                results = self.evaluator.play(config.eval.greedy, _is_stopped).metrics()
                confirms = last or (config.stop_when_solved and bar is not None and results[self.returns] >= bar)
                if confirms:
                    self._save_if_possible(before)  # first, because the evaluation can fail
                    results = self.final_evaluator.play(config.eval.greedy, _is_stopped).metrics()
            except StoppedError:
                self._save(before)
                return False
        self.sentinel.after_evaluation(results)
        lowest = results[self.returns] - 2.0 * results.get(f"{self.returns}_stderr", 0.0)
        self.solved = confirms and bar is not None and lowest >= bar
        self.metrics = {name: value for name, value in self.metrics.items() if name in BEST or not name.startswith("eval/")}
        self.metrics |= {f"eval/{name}": value for name, value in results.items()}
        if results[self.returns] > self.metrics.get("eval/best_return", -math.inf):
            self.metrics |= {"eval/best_return": results[self.returns], "eval/best_env_steps": self.env_steps}
            if config.checkpoint.best:
                self._save_best()
        return True

    def _evaluator(self, episodes: int, purpose: str) -> Evaluator:
        evaluator = Evaluator(self.setup, self.agent, episodes, derived_seed(self.config.seed, purpose))
        self.open.append(evaluator)
        return evaluator

    def _announce(self) -> None:
        """Tell the user once that iterations are long: the run reacts to nothing during one."""
        if self.iteration_s > LONG_ITERATION_S:
            self._tell_once(
                "long iteration",
                f"an iteration takes {self.iteration_s:.0f} s: limits, evaluations, checkpoints and Ctrl-C wait for its end;"
                " a smaller n_envs or agent.horizon makes it shorter",
            )

    def _tell_once(self, topic: str, text: str) -> None:
        if topic not in self.told:
            self.told.append(topic)
            self.records.message(text)

    def _log(self, now: Moment, before: Moment, evaluated: bool) -> None:
        self._refuse_removed_folder()
        ended = self.simulator.episodes()
        values = {name: float(value) for name, value in (self.losses | self._diagnostics()).items()}
        clipped = [name for name, value in values.items() if name.endswith("clipped_share") and value > MUCH_CLIPPED]
        if clipped:
            share = f"{values[clipped[0]]:.1%} of the observed numbers are clipped at 10 standard deviations"
            self._tell_once("clipping", f"{clipped[0]}: {share}; scale them in `observe` or set agent.normalize_obs=false")
        # The device has been waited for, so wall-clock time is right even where kernels run on their own.
        elapsed = self.records.wall_s - before.seconds
        values["perf/env_steps_per_s"] = (now.env_steps - before.env_steps) / max(elapsed, 1e-9)
        for phase, spent in self.clock.read().items():
            values[f"perf/{phase}_ms"] = spent.mean_ms
            values[f"perf/{phase}_share"] = spent.total_ms / max(1e3 * elapsed, 1e-6)
        values |= self.sentinel.metrics(ended)
        if self.received:
            values |= self.received.metrics()
        values |= {"train/progress": now.progress, "train/episodes": ended.count}
        if ended.count:
            values["train/episode_length"] = ended.mean_length
            for group, mean in ended.mean_return.items():
                values["train/return" if len(ended.mean_return) == 1 else f"train/{group}/return"] = mean
        evaluation = {name: value for name, value in self.metrics.items() if evaluated and name.startswith("eval/")}
        self.metrics |= values
        self.history.append(values | evaluation)
        with self.clock.phase("log"):
            self.records.log(self.env_steps, values | evaluation)

    def _state_of_evaluators(self) -> State:
        tensors = {f"evaluator/{name}": tensor for name, tensor in self.evaluator.state().items()}
        return tensors | {f"final_evaluator/{name}": tensor for name, tensor in self.final_evaluator.state().items()}

    def _state(self, evaluators: State | None = None) -> State:
        """Return all tensors that the rest of the run depends on; `evaluators` replaces the state of the evaluators."""
        tensors = own_state(self.agent, self.simulator) | (self._state_of_evaluators() if evaluators is None else evaluators)
        return tensors | (self.joint.states_of_others() if self.joint else {})

    def _position(self) -> Position:
        place, pending = self.records.place, self._is_pending()
        return Position(
            iterations=self.boundary.iterations,
            env_steps=self.boundary.env_steps,
            pending=pending,
            wall_s=place.wall_s,
            boundary_s=self.boundary.seconds,
            began_s=self.limits.began_s,
            iteration_s=self.iteration_s,
            due_s={name: cadence.due_s for name, cadence in self.cadences.items()},
            metrics=self.metrics,
            losses={name: float(value) for name, value in self.losses.items()},
            diagnostics=self._diagnostics() if pending else {},
            replaced=self.sentinel.replaced,
            told=self.told,
            solved=self.solved,
            row_env_steps=place.env_steps,
            files=dict(place.files),
        )

    def _is_pending(self) -> bool:
        """Return whether the boundary of the last iteration is still to come, see `Position`."""
        return self.env_steps > self.boundary.env_steps

    def _diagnostics(self) -> dict[str, float]:
        return self.diagnosed or {name: float(value) for name, value in self.agent.diagnostics(self.simulator.trajectory).items()}

    def _save(self, evaluators: State | None = None) -> None:
        """Write a checkpoint to resume from, in the first process only; see `_state`. Raises TrainingFailed."""
        self._check_before_save()
        if self.setup.communicator.rank == 0:
            self.saver.save(self.env_steps, self._state(evaluators), self._meta())

    def _save_if_possible(self, evaluators: State | None = None) -> None:
        """Write a checkpoint as `_save` does, but go on if it cannot be written."""
        self._check_before_save()
        if self.setup.communicator.rank == 0:
            self.saver.save_if_possible(self.env_steps, self._state(evaluators), self._meta())

    def _save_best(self) -> None:
        """Write the policy to the folder of the best checkpoint, in the first process only."""
        policy = self.agent.policy_state()
        self._refuse_removed_folder()
        self.sentinel.before_save(policy)
        if self.setup.communicator.rank == 0:
            named = {f"agent/{name}": tensor for name, tensor in policy.items()}
            self.saver.save_best(self.env_steps, named, {"evaluation": self._last_evaluation(), "spec": to_data(self.simulator.spec)})

    def _check_before_save(self) -> None:
        self._refuse_removed_folder()
        if self._is_pending():
            self.diagnosed = self._diagnostics()  # before the simulator moves its last observations to row 0, see `Simulator.state`
        self.sentinel.before_save(self.agent.state())

    def _can_afford_checkpoint(self) -> bool:
        if self.cadences["checkpoint"].counts != "seconds" or self.saver.is_affordable():
            return True
        self._tell_once("rare checkpoints", f"checkpoints take long: some are left out, so that they take {SHARE:.0%} of the time")
        return False

    def _meta(self) -> checkpoint.Meta:
        return {"evaluation": self._last_evaluation(), "run": asdict(self._position()), "spec": to_data(self.simulator.spec)}

    def _last_evaluation(self) -> dict[str, float]:
        tags = {"mean": f"eval/{self.returns}", "stderr": f"eval/{self.returns}_stderr"}
        return {name: self.metrics[tag] for name, tag in tags.items() if tag in self.metrics}

    def _refuse_removed_folder(self) -> None:
        if not self.held.is_there():
            raise TrainingFailed(f"the run folder {self.folder} was removed during the run")

    def _write_status(self, state: str, reason: str | None = None) -> None:
        """Write status.json, in the first process only."""
        if self.setup.communicator.rank != 0 or not self.held.is_there():
            return
        with self.status_lock:
            self._replace_status(state, reason)

    def _replace_status(self, state: str, reason: str | None) -> None:
        status = {"state": state} | self.status | {"env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3)}
        status |= {name: self.metrics.get(f"{name}/{self.returns}") for name in ("train", "eval")}
        status["eval_stderr"] = self.metrics.get(f"eval/{self.returns}_stderr")
        if reason:
            status["reason"] = reason
        try:
            rundir.write_status(self.folder, status)
        except OSError as error:
            self.records.message(f"cannot write {self.folder / STATUS}: {error.strerror}")

    def _summary(self) -> dict[str, float | str]:
        groups = self.simulator.spec.groups
        return summarize(self.metrics, self.history, groups, self.returns, self.config.env.solved_at, self.solved) | {
            "env_steps": self.env_steps,
            "wall_s": self.records.wall_s,
        }


def in_all(world: World | Team | None) -> AbstractContextManager[None]:
    """Do something in all ranks or in none, see `Ranks.together`."""
    return world.together() if world else nullcontext()


def _is_stopped() -> bool:
    return signals.requests.number is not None
