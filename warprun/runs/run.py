"""One run: from its first iteration to its last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace

from warprun.config.cadence import Moment
from warprun.config.compose import note_on_defaults, note_on_files, note_on_tuned
from warprun.config.schema import Config, to_dict
from warprun.errors import RankFailed, TrainingFailed, UserError, one_line
from warprun.runs import checkpoint, gpu_failures, position, rundir, signals
from warprun.runs.crew import Crew
from warprun.runs.evaluation import Evaluations, StoppedError, is_stopped
from warprun.runs.measured import Measured, Notes, PhaseClock, of_episodes, of_phases, on_host
from warprun.runs.records.records import Records
from warprun.runs.rundir import Status
from warprun.runs.saved_spec import to_data
from warprun.runs.saver import Saver
from warprun.runs.sentinel import Sentinel
from warprun.runs.summary import Course, summarize
from warprun.runs.timetable import Limits, timetable
from warprun.simulation.external import mpi
from warprun.state import State


class Run:
    """A run from its first to its last iteration. Call `train.start` or `train.restore`, then `meet` and `drive`; `close` if that fails."""

    def __init__(self, config: Config, held: rundir.Held, crew: Crew) -> None:
        self.config, self.held, self.folder, self.crew = config, held, held.folder, crew
        self.saved = checkpoint.load(self.folder) if checkpoint.exists(self.folder) else None
        self.position = position.Position() if self.saved is None else position.read(self.saved.meta.get("run", {}))
        self.limits = Limits(config.total_steps, config.max_minutes, self.position.began_s, config.until_steps)
        self.boundary = self.limits.moment(self.position.boundary_s, self.position.env_steps, self.position.iterations)
        """The last completed boundary."""
        self.limits.refuse_ended(self.boundary, self.position, self.folder, config.stop_when_solved)
        self.records = Records(self.folder, to_dict(config), config.log.live, self.position.records_end)
        self.open = ExitStack()
        self.open.callback(self.records.close)
        self.notes = Notes(self.records.message, self.position.told)
        try:
            self._make_parts()
        except BaseException:
            self.close()
            raise
        self.status = Status(held, self.records.message)
        self.saver = Saver(held, config.checkpoint, self.records.message)
        self.clock = PhaseClock(self.setup.device.torch)
        self.solved, self.iteration_s = self.position.solved, self.position.iteration_s
        self.diagnosed = dict(self.position.diagnostics)
        """The diagnostics of the last rollout, if another process computed it."""
        self.cadences = timetable(config, self.setup.environment, self.boundary, self.position.due_s)

    def _make_parts(self) -> None:
        config, message = self.config, self.records.message
        self.open.callback(mpi.release)
        self.open.callback(self.crew.close)
        self.setup = self.crew.set_up(config)
        self.records.start({"device": f"{self.setup.device.name} ({self.setup.device.why})"})
        for note in filter(None, (note_on_files(config), note_on_tuned(config), note_on_defaults(config), config.origin.n_envs)):
            message(note)
        message(f"rollout and update: {self.setup.plan}")
        self.agent, self.simulator = self.crew.make_parts(message, lambda: self.records.wall_s)
        self.spec = to_data(self.simulator.spec)
        names = list(self.simulator.trajectory.groups)
        returns = "return" if len(names) == 1 else f"{config.eval.group or names[0]}/return"
        self.measured = Measured(returns, self.position.metrics, self.position.losses)
        self.evaluations = Evaluations(self.setup, self.agent, returns)
        self.open.callback(self.evaluations.close)
        self.sentinel = Sentinel(self.simulator, self.notes.once, config.env, self.position.replaced)

    def close(self) -> None:
        """End the records and all processes. A second call does nothing."""
        self.open.close()

    def meet(self) -> None:
        """Wait until the other processes are set up. Raises RankFailed."""
        if line := self.crew.meet(self.folder, self.saved, lambda why: self._write_status("failed", why)):
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
            except BaseException as error:
                if not (failed := gpu_failures.failure_of(error, self.config)):
                    self._write_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", one_line(error))
                    raise
                failure = TrainingFailed(f"{failed}; {checkpoint.newest(self.folder)}")
                self._write_status("failed", str(failure))
                self.records.finish(self._summary() | {"failed": str(failure)}, "failed")
                raise failure from (None if failed is error else error)
        return status

    def _train(self, stack: ExitStack) -> str:
        self.logged = self.boundary._replace(seconds=self.records.wall_s, env_steps=self.env_steps)
        self.records.shown(self.env_steps)
        iterates = not self.position.pending
        while True:
            began_s = self.records.wall_s
            if iterates:
                self._iterate()
            iterates = True
            now, first_here = self._arrive(began_s)
            if is_stopped():
                self._save(self.saver.save)
                return "interrupted"
            last = self.limits.reached(now, self.iteration_s)
            evaluates = last or self.cadences["eval"].due(now)
            if evaluates and not self._evaluate(last):
                return "interrupted"
            stop = last or (self.solved and self.config.stop_when_solved)
            if self.cadences["log"].due(now) or evaluates or stop:
                self._log(now, evaluates)
            else:
                self.records.show(now.env_steps)
            self.boundary = now
            if stop:
                self._save(self.saver.save)
                return "solved" if self.solved else "finished"
            self.notes.halfway(now.progress, self._course)
            if self.cadences["checkpoint"].due(now) and self.saver.is_affordable(self.cadences["checkpoint"], self.notes):
                with self.records.paused():
                    self._save(self.saver.save_if_possible)
                self._write_status("running")
            if first_here:  # from here on there is something to lose
                stack.enter_context(signals.requests.deferred())

    def _iterate(self) -> None:
        self.crew.iterate(self.boundary.progress)
        with self.clock.phase("rollout"):
            trajectory = self.simulator.collect(self.agent.act)
        self.notes.on_lost(self.crew.lost())
        self.sentinel.after_rollout(self.crew.has_rollout())
        with self.clock.phase("update"):
            losses = self.agent.update(trajectory, progress=self.boundary.progress)
        self.sentinel.after_update(losses)
        self.measured.losses |= losses
        self.diagnosed = {}

    def _arrive(self, began_s: float) -> tuple[Moment, bool]:
        """Return the boundary that an iteration has come to, and whether it is the first of this process."""
        now = self.limits.moment(self.records.wall_s, self.env_steps, self.boundary.iterations + 1)
        if now.iterations == 1:  # which compiles the kernels of the update: schedules and time limits count from its end
            self.limits = replace(self.limits, began_s=now.seconds)
            now = self.limits.moment(now.seconds, now.env_steps, 1)
        first_here = now.iterations == self.position.iterations + 1
        self.iteration_s = 0.0 if first_here else now.seconds - began_s  # the first one compiles or loads kernels
        self.notes.on_duration(self.iteration_s)
        return now, first_here

    def _evaluate(self, last: bool) -> bool:
        """Evaluate the policy; if it seems solved and that would end the run, again. At the end only final ones are played. Return False
        if a signal ended the evaluation. The state before it is then saved, as it is if the evaluation fails."""
        self.notes.on_endless(self._course(), self.simulator.trajectory)
        before = {name: tensor.clone() for name, tensor in self.evaluations.state().items()}
        with self.clock.phase("eval"):
            try:
                decides = last or self.evaluations.ends_run((played := self.evaluations.play()).metrics())
                if decides and self.saver.is_overdue:  # the process can be killed while it evaluates
                    self._save(self.saver.save_for_now, before)
                played = self.evaluations.play_decisive() if decides else played
                self.sentinel.after_evaluation(results := played.metrics())
                solved = decides and self.evaluations.are_solved(results)
                paired = self.evaluations.compare(self.folder, played, before) if last or solved else None
            except StoppedError:
                self._save(self.saver.save, before)
                return False
            except (TrainingFailed, UserError) as error:  # the policy is as it was
                with suppress(TrainingFailed):  # which is not the error to tell
                    if not isinstance(error, RankFailed):
                        self._save(self.saver.save, before)
                raise
        self.solved = solved
        if self.measured.evaluate(results, self.env_steps, paired) and self.config.checkpoint.best:
            self._save_best()
        return True

    def _log(self, now: Moment, evaluated: bool) -> None:
        self.saver.refuse_removed_folder()
        ended = self.crew.episodes()
        values = on_host(self.measured.losses) | self._diagnostics()
        self.notes.on_clipping(values)
        spent, read_s = self.clock.read(), self.records.wall_s  # the device has been waited for
        values |= of_phases(spent, now.env_steps - self.logged.env_steps, read_s - self.logged.seconds)
        values |= self.sentinel.metrics(ended) | self.crew.metrics() | of_episodes(ended) | {"train/progress": now.progress}
        with self.clock.phase("log"):
            self.records.log(self.env_steps, self.measured.record(values, evaluated))
        self.logged = now._replace(seconds=read_s)  # writing the record is part of the next interval, as its phase is

    def _write_status(self, state: str, reason: str | None = None) -> None:
        self.status.write(state, {"env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3), **self.measured.returned}, reason)

    def _summary(self) -> dict[str, float | str]:
        return summarize(self._course()) | {"env_steps": self.env_steps, "wall_s": self.records.wall_s}

    def _course(self) -> Course:
        of = self.measured
        return Course(of.metrics, of.history, self.simulator.spec, of.returns, self.config, self.solved, of.paired)

    def _save(self, write: Callable[[int, State, checkpoint.Meta], None], evaluators: State | None = None) -> None:
        """Write a checkpoint to resume from, by a method of the saver, with `evaluators` as their state if given. Raises TrainingFailed."""
        if self.is_pending:
            self.diagnosed = self._diagnostics()  # before the simulator moves its last observations to row 0, see `Simulator.state`
        self.sentinel.before_save(self.agent.state())
        state = self.crew.state() | (self.evaluations.state() if evaluators is None else evaluators)
        write(self.env_steps, state, {**self.measured.described, "run": asdict(self._position()), "spec": self.spec})

    def _save_best(self) -> None:
        """Write the policy to the folder of the best checkpoint."""
        self.sentinel.before_save(policy := self.agent.policy_state())
        named = {f"agent/{name}": tensor for name, tensor in policy.items()}
        self.saver.save_best(self.env_steps, named, {**self.measured.described, "spec": self.spec})

    def _position(self) -> position.Position:
        """Return where the run is."""
        return replace(
            position.at(self.boundary, self.records.end, self.cadences, self.measured),
            pending=self.is_pending,
            began_s=self.limits.began_s,
            iteration_s=self.iteration_s,
            diagnostics=self._diagnostics() if self.is_pending else {},
            replaced=self.sentinel.replaced,
            told=self.notes.told,
            solved=self.solved,
        )

    @property
    def is_pending(self) -> bool:
        """Whether the boundary of the last iteration is still to come, see `position.Position`."""
        return self.env_steps > self.boundary.env_steps

    def _diagnostics(self) -> dict[str, float]:
        """Return the diagnostics of the last rollout."""
        return self.diagnosed or on_host(self.agent.diagnostics(self.simulator.trajectory))
