"""Launches iterations: plans them, lays them out, and retries failed ones smaller or one request at a time."""

import logging

from orcastream.engine.batch.executor import Executor
from orcastream.engine.batch.iteration import Pending, Prepared
from orcastream.engine.lost_device import LOST_DEVICE
from orcastream.engine.memory_errors import is_out_of_memory, release
from orcastream.engine.record import Stopwatch
from orcastream.engine.request import RequestState
from orcastream.engine.schedule.plan import Plan
from orcastream.engine.schedule.scheduler import Scheduler

_log = logging.getLogger(__name__)


class Launcher:
    """Launches the scheduler's plans on the device.

    If memory does not suffice for an iteration, the next one is smaller; if it does not suffice for a single token, the
    error is raised, because it would fail every request. If an iteration fails for another reason, its requests are
    launched one by one, and those that fail alone are noted.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor

    def prepare(self) -> Prepared | None:
        """Return the next iteration, laid out; None if there is nothing to compute, or not enough memory."""
        watch = Stopwatch()
        plan = self._scheduler.select()
        watch.select_s = watch.lap()
        if not plan:
            return None
        try:
            return self._executor.prepare(plan, watch)
        except Exception as error:
            if not self._relieved(plan, error):
                raise
            return None

    def launch(self, prepared: Prepared) -> Pending | None:
        """Launch an iteration, request by request if it fails; None if memory does not suffice for it.

        Errors that no single request causes are raised: the device is lost, or there is no memory at all.
        """
        plan, watch = prepared.plan, prepared.watch
        pending = Pending(plan, watch)
        try:
            self._executor.launch(prepared, pending)
            self._scheduler.relief.succeeded()
            return pending
        except LOST_DEVICE:
            raise
        except Exception as error:
            if self._relieved(plan, error):
                return None
            _log.warning("an iteration of %d requests failed, retrying one by one", len(plan), exc_info=error)
        for index, request in enumerate(plan.requests):
            if request.state is not RequestState.FINISHED:
                self._launch_alone(plan.only(index), pending)
        return pending

    def launch_behind(self, prepared: Prepared, before: Pending) -> Pending | None:
        """Launch an iteration after `before`, whose tokens the host has not read, so that the device never idles.

        None, and nothing changed, if those tokens must be known first, or if it failed, which `launch` will report.
        """
        unseen = before.unseen(prepared.unknown)
        if unseen is None:
            return None
        pending = Pending(prepared.plan, prepared.watch)
        try:
            self._executor.launch(prepared, pending, unseen)
        except LOST_DEVICE:
            raise
        except Exception:
            return None
        self._scheduler.relief.succeeded()
        return pending

    def _launch_alone(self, plan: Plan, pending: Pending) -> None:
        """Launch the one request of `plan` as part of `pending`."""
        try:
            self._executor.launch(self._executor.prepare(plan, pending.watch), pending)
        except LOST_DEVICE:
            raise
        except Exception as error:
            if self._relieved(plan, error):
                return
            (request,) = plan.requests
            _log.exception("request %s failed alone", request.id)
            pending.failed[request.id] = f"the model failed on this request: {error!r}"

    def _relieved(self, plan: Plan, error: Exception) -> bool:
        """If memory did not suffice for `plan`, continue with smaller iterations; raise `error` if there are none.

        Return False if it is another error.
        """
        if not is_out_of_memory(error):
            return False
        release(error)  # before requests are swapped out, which takes some memory
        if not self._scheduler.relieve(plan):
            raise error
        _log.warning("no memory for %d tokens of %d requests: continuing with fewer", plan.num_tokens, len(plan))
        return True
