"""Enqueue jobs that belong together: chains, groups, batches and graphs.

    chain(fetch.s(url), clean.s(), load.s()).enqueue(name="etl")
    group(resize.s(1), resize.s(2)).enqueue()
    batch(*(send.s(pk) for pk in pks), on_success=report.s(), on_failure=alert.s()).enqueue(name="newsletter")
    Workflow.graph(
        {"extract": extract.s(), "clean": clean.s(), "load": load.s()},
        after={"clean": ["extract"], "load": ["extract", "clean"]},
    ).enqueue(name="etl")

Parts of a chain, group or batch may be workflows themselves. A handler reads what the jobs before it returned
from `context.parent_results`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from asgiref.sync import sync_to_async

from django_ojs.client.definition import PreparedJob
from django_ojs.client.handle import Handle, JobHandle, reason_text
from django_ojs.client.options import TimedOptions, attributes, checked_options, id_text
from django_ojs.client.otherwords import OF_WORKFLOW, OtherWords
from django_ojs.errors import NotFound
from django_ojs.faults import or_migrate
from django_ojs.messages import shown
from django_ojs.rules import workflowgraph, workflows

if TYPE_CHECKING:
    from django_ojs.workflows.workflow import WorkflowView

#: When a callback runs: after all that it depends on have ended, if none of them failed, if one did.
CallbackType: TypeAlias = Literal["on_complete", "on_success", "on_failure"]
#: What a workflow is made of.
WorkflowPart: TypeAlias = "PreparedJob | PreparedWorkflow"


class PreparedWorkflow(OtherWords):
    """Describes a workflow that is not stored yet and can be enqueued, as a `PreparedJob` describes such a job.

    `chain`, `group`, `batch` and `Workflow.graph` make it; sites import the class as `django_ojs.Workflow`. A stored
    workflow is a row of the model `django_ojs.models.Workflow`, of which a site gets a `WorkflowHandle`.
    """

    __slots__ = ("_document",)
    _other_words = OF_WORKFLOW

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    @classmethod
    def graph(
        cls, steps: Mapping[str, PreparedJob], *, after: Mapping[str, str | Iterable[str]],
        callback_type: Mapping[str, CallbackType] | None = None,
    ) -> PreparedWorkflow:  # fmt: skip
        """Make a workflow of named steps. `after` names the steps that a step depends on, one or several.

        A step runs when all steps that it depends on have completed. It reads their results in the order given here,
        or by name. `callback_type` makes steps callbacks of those that they depend on: `on_complete` runs when these
        have ended, however they did, `on_failure` if one of them failed, and `on_success` if none did. Steps that are
        called so are such callbacks anyway.
        """
        callbacks = callback_type or {}
        arguments: tuple[tuple[str, Any], ...] = ("steps", steps), ("after", after), ("callback_type", callbacks)
        for argument, given in arguments:
            if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
                raise TypeError(f"{argument}={shown(given)}: give a dict by the names of the steps.")
            if unknown := sorted(set(given) - set(steps)):
                listed = ", ".join(steps)
                raise ValueError(f"{argument}= speaks of {unknown[0]!r}, which is none of the steps {listed}.")
        documents = []
        for name, part in steps.items():
            names = after.get(name, ())
            if not isinstance(names, Iterable):
                raise TypeError(f"after={{{name!r}: {shown(names)}}}: give the names of the steps that it waits for.")
            waits = [names] if isinstance(names, str) else list(names)
            document = {**_document(part), "id": name, "depends_on": waits}
            if (kind := callbacks.get(name)) is not None:
                if kind not in workflowgraph.CALLBACKS or not waits:
                    raise ValueError(
                        f"callback_type={{{name!r}: {shown(kind)}}}: give {', '.join(workflowgraph.CALLBACKS)}, for a "
                        "step that after= lets wait for others."
                    )
                document["options"] = {**document.get("options", {}), "callback_type": kind}
            documents.append(document)
        return cls({"steps": documents})

    def document(self) -> dict[str, Any]:
        """The body of the request that makes the same workflow over HTTP."""
        return dict(self._document)

    def enqueue(
        self, *, name: str = "", id: str | uuid.UUID | None = None, **options: Unpack[TimedOptions]
    ) -> WorkflowHandle:
        """Store the workflow and enqueue the jobs that can start, all or none, in the open transaction if there is
        one.

        `options` are defaults of its jobs, as for `.options()`. Raises InvalidWorkflow for a circle and other faults,
        Duplicate for an `id` that is taken, and what PUSH raises for the first jobs; Duplicate also for one that its
        unique policy would ignore.
        """
        from django_ojs.outbox import place, put_workflow
        from django_ojs.workflows import workflow

        document = self.document()
        if name:
            document["name"] = name
        if id is not None:
            document["id"] = workflows.check_id(id_text(id))
        if given := attributes(checked_options(options)):
            nested = given.pop("options", {})
            document["options"] = {**given, **nested}
        if place() is None:
            return WorkflowHandle(or_migrate(workflow.create)(document))
        return WorkflowHandle(or_migrate(put_workflow)(document), in_outbox=True)

    async def aenqueue(
        self, *, name: str = "", id: str | uuid.UUID | None = None, **options: Unpack[TimedOptions]
    ) -> WorkflowHandle:
        """`enqueue` from asynchronous code."""
        return await sync_to_async(self.enqueue)(name=name, id=id, **options)

    def __repr__(self) -> str:
        parts = self._document.get("steps") or self._document.get("jobs") or []
        return f"<PreparedWorkflow {self._document.get('type', 'graph')} of {len(parts)}>"


#: The name under which sites import the class, from `django_ojs`. In this package the word means the model.
Workflow = PreparedWorkflow


def chain(*steps: WorkflowPart) -> PreparedWorkflow:
    """Make a workflow whose steps run one after the other. The first step that fails ends it."""
    return PreparedWorkflow({"type": "chain", "steps": _documents(steps, "chain")})


def group(*jobs: WorkflowPart) -> PreparedWorkflow:
    """Make a workflow whose jobs run at the same time. It ends when all jobs have ended."""
    return PreparedWorkflow({"type": "group", "jobs": _documents(jobs, "group")})


def batch(
    *jobs: WorkflowPart,
    on_complete: PreparedJob | None = None,
    on_success: PreparedJob | None = None,
    on_failure: PreparedJob | None = None,
) -> PreparedWorkflow:
    """Make a workflow whose jobs run at the same time, with callbacks that run when all have ended.

    `on_complete` always runs, `on_success` if all jobs have completed, and `on_failure` if a job has failed.
    """
    given = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    callbacks = {key: _document(prepared) for key, prepared in given.items() if prepared is not None}
    if not callbacks:
        raise TypeError("batch() needs on_complete=, on_success= or on_failure=; without one it is a group().")
    return PreparedWorkflow({"type": "batch", "jobs": _documents(jobs, "batch"), "callbacks": callbacks})


class WorkflowFailed(Exception):
    """The workflow that was waited for failed: a job in it was discarded or cancelled.

    Attributes:
        handle: the workflow.
        error: `failed_step_id`, `failed_job_ids` and `errors`, as `handle.error` has them; None if it has none.
    """

    def __init__(self, handle: WorkflowHandle) -> None:
        super().__init__(handle)  # so that it can be pickled
        self.handle = handle
        self.error = handle.error

    def __str__(self) -> str:
        what = f"Workflow {self.handle.id} ({self.handle.type}) is {self.handle.state}"
        step = (self.error or {}).get("failed_step_id")
        return what + (f": the step {step!r} failed." if step else ".")


class WorkflowCancelled(WorkflowFailed):
    """The workflow that `wait()` waited for was cancelled. A WorkflowFailed, so one `except` catches both."""


class WorkflowHandle(Handle):
    """A stored workflow. Its attributes have the values of the last read: at `enqueue`, or by `refresh()`.

    `in_outbox` and `outbox_error` are those of `JobHandle`.
    """

    __slots__ = ("_view",)

    def __init__(self, view: WorkflowView, *, in_outbox: bool = False) -> None:
        self._view, self.in_outbox, self.outbox_error = view, in_outbox, ""

    @property
    def id(self) -> str:
        return self._view.workflow.public_id

    @property
    def key(self) -> uuid.UUID:
        """The primary key of its row."""
        return self._view.workflow.pk

    @property
    def name(self) -> str:
        return self._view.workflow.name

    @property
    def type(self) -> str:
        return self._view.workflow.type

    @property
    def state(self) -> str:
        """`running`, `completed`, `failed` or `cancelled`."""
        return str(self._view.workflow.state)

    @property
    def is_finished(self) -> bool:
        return self.state != "running"

    @property
    def error(self) -> dict[str, Any] | None:
        """The cause of a failure: `failed_step_id`, `failed_job_ids`, `errors`."""
        value: dict[str, Any] | None = self._view.workflow.error
        return value

    @property
    def jobs(self) -> list[JobHandle]:
        """The jobs that have been enqueued so far, callbacks included, each behind those that it waits for."""
        found = [self._view.jobs.get(step.job_id) for step in self._view.steps if step.job_id]
        return [JobHandle(row) for row in found if row is not None]

    @property
    def document(self) -> dict[str, Any]:
        """The workflow as the wire shows it."""
        return workflowgraph.render(*self._view)

    def refresh(self) -> WorkflowHandle:
        """Read the workflow again. Raises NotFound once it has been pruned."""
        from django_ojs.outbox import find
        from django_ojs.workflows import workflow

        try:
            self._view, self.in_outbox, self.outbox_error = workflow.info(self.key), False, ""
        except NotFound:
            if (entry := find(self.key)) is not None:
                self.in_outbox, self.outbox_error = True, entry.error if entry.aside else ""
            elif self.in_outbox:  # it may have been on its way between the two looks
                self._view, self.in_outbox, self.outbox_error = workflow.info(self.key), False, ""
            else:
                raise
        return self

    def cancel(self, reason: str = "", *, cancel_active: bool = False) -> WorkflowHandle:
        """Cancel the jobs that have not started, with `cancel_active` also running ones. Raises Conflict if it has
        ended.
        """
        from django_ojs.workflows import workflow

        self._refuse_in_outbox("cancel")
        self._view = workflow.cancel(self.key, cancel_active=cancel_active, reason=reason_text(reason)).view
        return self

    def retry(self) -> WorkflowHandle:
        """Resume the workflow where it failed. Raises Conflict if it has not failed."""
        from django_ojs.workflows import workflow

        self._refuse_in_outbox("retry")
        self._view = workflow.retry(self.key)
        return self

    acancel = sync_to_async(cancel)
    aretry = sync_to_async(retry)

    def _what(self) -> tuple[str, str, str]:
        return "workflow", self.id, f"({self.type}) is still {self.state}"

    def _failure(self) -> WorkflowFailed | None:
        match self.state:
            case "cancelled":
                return WorkflowCancelled(self)
            case "failed":
                return WorkflowFailed(self)
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<workflow {self.type} {self.id}: {self.state}>"


def get_workflow(id: str | uuid.UUID) -> WorkflowHandle:
    """Return the workflow with this id. Raises NotFound."""
    from django_ojs.workflows import workflow

    if not isinstance(id, str | uuid.UUID):
        raise NotFound.resource("workflow", shown(id))
    return WorkflowHandle(or_migrate(lambda: workflow.info(workflow.identify(str(id))))())


aget_workflow = sync_to_async(get_workflow)


def _documents(parts: Sequence[WorkflowPart], where: str) -> list[dict[str, Any]]:
    if not parts:
        raise TypeError(
            f"{where}() needs at least one job: pass handler.s(...). "
            "Where there may be none, enqueue then what should come after them."
        )
    return [_document(part) for part in parts]


def _document(part: WorkflowPart) -> dict[str, Any]:
    if not isinstance(part, PreparedJob | PreparedWorkflow):
        unpack = " Unpack it: group(*jobs)." if isinstance(part, list | tuple | Iterator) else ""
        raise TypeError(f"A workflow is made of handler.s(...), chain, group and batch, not of {shown(part)}.{unpack}")
    return part.member() if isinstance(part, PreparedJob) else part.document()
