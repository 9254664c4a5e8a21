"""One run: from its first iteration to its last."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace

from warprun import signals
from warprun.config.cadence import Moment, Recurring, parse
from warprun.config.compose import note_on_memory, note_on_tuned
from warprun.config.schema import Config, to_dict
from warprun.errors import TrainingFailed, one_line
from warprun.runs import checkpoint, position, rundir
from warprun.runs.clock import PhaseClock
from warprun.runs.crew import Crew
from warprun.runs.evaluate import Evaluator, StoppedError
from warprun.runs.evaluations import Evaluations, interval, is_stopped
from warprun.runs.limits import Limits
from warprun.runs.measured import Measured, of_episodes, of_phases, on_host
from warprun.runs.notes import Notes
from warprun.runs.position import Position
from warprun.runs.records.records import Records
from warprun.runs.saver import SHARE, Saver
from warprun.runs.sentinel import Sentinel
from warprun.runs.status import Status
from warprun.runs.summary import summarize
from warprun.seeds import derived_seed
from warprun.simulation.external.leading import Calls
from warprun.spec import to_data
from warprun.state import State

SILENCE_S = 10.0
"""Longest time in which the terminal shows no progress."""


class Run:
    """A run from its first to its last iteration. Call `begin.start` or `begin.restore`, then `meet` and `drive`; `close` if that fails."""

    def __init__(self, config: Config, held: rundir.Held, crew: Crew) -> None:
        self.config, self.held, self.folder, self.crew = config, held, held.folder, crew
        self.saved = checkpoint.load(self.folder) if checkpoint.exists(self.folder) else None
        self.position = Position() if self.saved is None else position.read(self.saved.meta.get("run", {}))
        self.limits = Limits(config.total_steps, config.max_minutes, self.position.began_s)
        self.boundary = self.limits.moment(self.position.boundary_s, self.position.env_steps, self.position.iterations)
        """The last completed boundary."""
        self.limits.refuse_ended(self.boundary, self.position, self.folder, config.stop_when_solved)
        self.records = Records(self.folder, to_dict(config), config.log.live, self.position.place)
        self.open = ExitStack()
        self.open.callback(self.records.close)
        try:
            self._make_parts()
        except BaseException:
            self.close()
            raise
        self.notes = Notes(self.records.message, self.position.told)
        self.status = Status(held, self.records.message)
        self.saver = Saver(self.folder, config.checkpoint, self.records.message)
        self.clock = PhaseClock(self.setup.device.torch)
        self.solved, self.iteration_s = self.position.solved, self.position.iteration_s
        self.diagnosed = dict(self.position.diagnostics)
        """The diagnostics of the last rollout, if another process computed it."""
        intervals = {name: parse(f"{name}.every", each.every) for name, each in (("checkpoint", config.checkpoint), ("log", config.log))}
        intervals["eval"] = interval(config, self.setup.environment)
        self.cadences = {
            name: Recurring(each, self.boundary._replace(seconds=self.position.due_s.get(name, 0.0))) for name, each in intervals.items()
        }

    def _make_parts(self) -> None:
        config, message = self.config, self.records.message
        self.open.callback(Calls().close)
        self.open.callback(self.crew.close)
        self.setup = self.crew.set_up(config)
        self.records.start({"device": f"{self.setup.device.name} ({self.setup.device.why})"})
        for note in filter(None, (note_on_tuned(config), note_on_memory(config), config.origin.n_envs)):
            message(note)
        message(f"rollout and update: {self.setup.plan}")
        self.agent, self.simulator = self.crew.make_parts(message, lambda: self.records.wall_s)
        names = list(self.simulator.trajectory.groups)
        returns = "return" if len(names) == 1 else f"{config.eval.group or names[0]}/return"
        self.measured = Measured(returns, self.position.metrics, self.position.losses)
        often = self._evaluator(config.eval.episodes, "evaluation")
        decisive = self._evaluator(config.eval.episodes_at_end, "final evaluation")
        self.evaluations = Evaluations(config, returns, often, decisive)
        self.sentinel = Sentinel(self.simulator, message, config.env.on_nan == "reset", self.position.replaced)

    def _evaluator(self, episodes: int, purpose: str) -> Evaluator:
        evaluator = Evaluator(self.setup, self.agent, episodes, derived_seed(self.config.seed, purpose))
        self.open.callback(evaluator.close)
        return evaluator

    def close(self) -> None:
        """End the records and all processes. A second call does nothing."""
        self.open.close()

    # The loop -------------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait until the other processes are set up. Raises RankFailed."""
        line = self.crew.meet(self.folder, self.saved, lambda why: self._write_status("failed", why))
        if line:
            self.records.message(line)

    @property
    def env_steps(self) -> int:
        """Environment steps so far, of all processes."""
        return self.crew.env_steps

    def drive(self) -> str:
        """Train until a limit is reached, the environment is solved, or a signal asks the run to stop; return which, as in status.json."""
        with ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(signals.requests.last_words(lambda name: self._write_status("interrupted", f"ended by {name}")))
            try:
                self._write_status("running")
                status = self._train(stack)
                self.crew.end()
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
        return status

    def _train(self, stack: ExitStack) -> str:
        iterates, shown = not self.position.pending, self.boundary._replace(seconds=self.records.wall_s, env_steps=self.env_steps)
        logged = shown
        while True:
            began_s = self.records.wall_s
            if iterates:
                self._iterate()
            iterates = True
            now = self.limits.moment(self.records.wall_s, self.env_steps, self.boundary.iterations + 1)
            if now.iterations == 1:
                # The first iteration compiles the kernels of the update. Schedules and time limits count from its end.
                self.limits = replace(self.limits, began_s=now.seconds)
                now = self.limits.moment(now.seconds, now.env_steps, 1)
            first_here = now.iterations == self.position.iterations + 1
            self.iteration_s = 0.0 if first_here else now.seconds - began_s  # the first one compiles or loads kernels
            self.notes.on_duration(self.iteration_s)
            last = self.limits.reached(now, self.iteration_s)
            if is_stopped():
                self._save()
                return "interrupted"
            evaluates = last or self.cadences["eval"].due(now)
            if evaluates and not self._evaluate(last):
                return "interrupted"
            stop = last or (self.solved and self.config.stop_when_solved)
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
                began_s = self.records.wall_s
                self._save_if_possible()
                self._write_status("running")
                shown = shown._replace(seconds=shown.seconds + self.records.wall_s - began_s)
            if first_here:
                # From here on there is something to lose.
                stack.enter_context(signals.requests.deferred())

    def _iterate(self) -> None:
        self.crew.iterate(self.boundary.progress)
        with self.clock.phase("rollout"):
            trajectory = self.simulator.collect(self.agent.act)
        self.notes.on_lost(self.crew.lost())
        self.sentinel.after_rollout()
        with self.clock.phase("update"):
            losses = self.agent.update(trajectory, progress=self.boundary.progress)
        self.sentinel.after_update(losses)
        self.measured.losses |= losses
        self.diagnosed = {}

    def _evaluate(self, last: bool) -> bool:
        """Evaluate the policy; if it seems solved and that would end the run, again. At the end only the final episodes are played.

        Return False if a signal ended the evaluation; the state before it is then saved.
        """
        before = {name: tensor.clone() for name, tensor in self.evaluations.state().items()}
        with self.clock.phase("eval"):
            try:
                results = {} if last else self.evaluations.play()
                decides = last or self.evaluations.ends_run(results)
                if decides:
                    self._save_if_possible(before)  # first, because the evaluation can fail
                    results = self.evaluations.play_decisive()
            except StoppedError:
                self._save(before)
                return False
        self.sentinel.after_evaluation(results)
        self.solved = decides and self.evaluations.are_solved(results)
        if self.measured.evaluate(results, self.env_steps) and self.config.checkpoint.best:
            self._save_best()
        return True

    def _log(self, now: Moment, before: Moment, evaluated: bool) -> None:
        self._refuse_removed_folder()
        ended = self.crew.episodes()
        values = on_host(self.measured.losses) | self._diagnostics()
        self.notes.on_clipping(values)
        # The device has been waited for, so wall-clock time is right even where kernels run on their own.
        values |= of_phases(self.clock.read(), now.env_steps - before.env_steps, self.records.wall_s - before.seconds)
        values |= self.sentinel.metrics(ended) | self.crew.metrics()
        values |= {"train/progress": now.progress} | of_episodes(ended)
        with self.clock.phase("log"):
            self.records.log(self.env_steps, self.measured.record(values, evaluated))

    def _write_status(self, state: str, reason: str | None = None) -> None:
        facts = {"env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3)} | self.measured.returned
        self.status.write(state, facts, reason)

    def _summary(self) -> dict[str, float | str]:
        measured, groups = self.measured, self.simulator.spec.groups
        lines = summarize(measured.metrics, measured.history, groups, measured.returns, self.config.env.solved_at, self.solved)
        return lines | {"env_steps": self.env_steps, "wall_s": self.records.wall_s}

    # What it saves --------------------------------------------------------------------------------------------------------

    def _save(self, evaluators: State | None = None) -> None:
        """Write a checkpoint to resume from, with `evaluators` as their state if given. Raises TrainingFailed."""
        self._check_before_save()
        self.saver.save(self.env_steps, self._state(evaluators), self._meta())

    def _save_if_possible(self, evaluators: State | None = None) -> None:
        """Write a checkpoint as `_save` does, but go on if it cannot be written."""
        self._check_before_save()
        self.saver.save_if_possible(self.env_steps, self._state(evaluators), self._meta())

    def _save_best(self) -> None:
        """Write the policy to the folder of the best checkpoint."""
        policy = self.agent.policy_state()
        self._refuse_removed_folder()
        self.sentinel.before_save(policy)
        named = {f"agent/{name}": tensor for name, tensor in policy.items()}
        self.saver.save_best(self.env_steps, named, {"evaluation": self.measured.last_evaluation, "spec": to_data(self.simulator.spec)})

    def _check_before_save(self) -> None:
        self._refuse_removed_folder()
        if self._is_pending():
            self.diagnosed = self._diagnostics()  # before the simulator moves its last observations to row 0, see `Simulator.state`
        self.sentinel.before_save(self.agent.state())

    def _can_afford_checkpoint(self) -> bool:
        if self.cadences["checkpoint"].counts != "seconds" or self.saver.is_affordable():
            return True
        self.notes.once("rare checkpoints", f"checkpoints take long: some are left out, so that they take {SHARE:.0%} of the time")
        return False

    def _state(self, evaluators: State | None) -> State:
        """Return all tensors that the rest of the run depends on; `evaluators` replaces the state of the evaluators."""
        return self.crew.state() | (self.evaluations.state() if evaluators is None else evaluators)

    def _meta(self) -> checkpoint.Meta:
        return {"evaluation": self.measured.last_evaluation, "run": asdict(self._position()), "spec": to_data(self.simulator.spec)}

    def _position(self) -> Position:
        """Return where the run is."""
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
            metrics=self.measured.metrics,
            losses=on_host(self.measured.losses),
            diagnostics=self._diagnostics() if pending else {},
            replaced=self.sentinel.replaced,
            told=self.notes.told,
            solved=self.solved,
            row_env_steps=place.env_steps,
            files=dict(place.files),
        )

    def _is_pending(self) -> bool:
        """Return whether the boundary of the last iteration is still to come, see `Position`."""
        return self.env_steps > self.boundary.env_steps

    def _diagnostics(self) -> dict[str, float]:
        """Return the diagnostics of the last rollout."""
        return self.diagnosed or on_host(self.agent.diagnostics(self.simulator.trajectory))

    def _refuse_removed_folder(self) -> None:
        if not self.held.is_there():
            raise TrainingFailed(f"the run folder {self.folder} was removed during the run")
