"""Configurations that half apply, lose what they did not name, or reach beyond their queue."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_ojs import audit, clock, doctor, retention
from django_ojs.cron import runs, schedules
from django_ojs.errors import Conflict, Duplicate, InvalidRequest, JobTypeNotAllowed, NotFound, QueuePaused
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import Job, Queue, Workflow
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
from django_ojs.queues import configuration, deletion
from django_ojs.queues.configuration import configure, document, pause
from django_ojs.queues.deletion import finish_removals, remove
from django_ojs.retention import prune
from django_ojs.rules import retrypolicy
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.workflows import workflow
from tests.queues.conftest import assert_exact

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _anonymous(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


def make(queue: str = "q", type: str = "a.b", **fields: Any) -> Any:
    configuration.forget()
    return push([{"type": type, "args": [], "queue": queue, **fields}])[0].row


def call(method: str, path: str, body: Any = None, **headers: str) -> Any:
    return Client().generic(
        method, f"/ojs/v1{path}", __import__("json").dumps(body) if body is not None else "",
        content_type="application/json", headers=headers,
    )  # fmt: skip


class TestMerge:
    def test_a_partial_change_keeps_what_it_does_not_name_and_null_takes_back(self) -> None:
        configure("q", {"retention": {"completed": "P1D", "cancelled": "P2D"}, "visibility_timeout": 30, "max_size": 5})
        queue = configure("q", {"retention": {"completed": "P3D"}, "max_size": None, "x_ours": {"kept": True}})
        assert document(queue) == {
            "retention": {"completed": "P3D", "cancelled": "P2D"}, "visibility_timeout": 30, "x_ours": {"kept": True},
        }  # fmt: skip
        assert queue.visibility_ms == 30_000

    @pytest.mark.parametrize(
        "change, field",
        [
            ({"concurrency": -1}, "concurrency"), ({"concurrency": True}, "concurrency"),
            ({"rate_limit": {"limit": 0, "period": "PT1S"}}, "rate_limit.limit"),
            ({"rate_limit": {"limit": 1, "period": "soon"}}, "rate_limit.period"),
            ({"rate_limit": []}, "rate_limit"), ({"visibility_timeout": 0}, "visibility_timeout"),
            ({"default_timeout": "x"}, "default_timeout"), ({"default_retry": {"max_attempts": -1}}, None),
            ({"retention": {"completed": "yesterday"}}, "retention.completed"), ({"retention": 5}, "retention"),
            ({"allowed_job_types": "email.*"}, "allowed_job_types"), ({"draining": "yes"}, "draining"),
            ({"backpressure": {"max_depth": -1}}, "backpressure.max_depth"),
            ({"backpressure": {"strategy": "pray"}}, "backpressure.strategy"),
            ({"backpressure": {"warning_threshold": 2}}, "backpressure.warning_threshold"),
            ({"overflow_policy": 1}, "overflow_policy"), ({"dead_letter": {"retention": {"max_count": "x"}}}, None),
        ],
    )  # fmt: skip
    def test_a_bad_value_is_named_and_changes_nothing(self, change: Any, field: str | None) -> None:
        configure("q", {"max_size": 5})
        with pytest.raises(InvalidRequest) as refusal:
            configure("q", {"max_size": 6, **change})
        assert field is None or refusal.value.details["field"] == field
        assert document(Queue.objects.get(name="q")) == {"max_size": 5}

    def test_a_change_may_be_part_of_a_limit(self) -> None:
        configure("q", {"rate_limit": {"limit": 5, "period": "PT1M", "concurrency": 2}})
        configure("q", {"rate_limit": {"limit": 9, "concurrency": None}})
        assert document(Queue.objects.get(name="q")) == {"rate_limit": {"limit": 9, "period": "PT1M"}}
        for name in ("q", "new"):
            with pytest.raises(InvalidRequest) as refusal:
                configure(name, {"rate_limit": {"limit": 9, "period": None}})
            assert refusal.value.details["field"] == "rate_limit.period"
        assert document(Queue.objects.get()) == {"rate_limit": {"limit": 9, "period": "PT1M"}}

    def test_what_is_said_of_dead_letters_takes_the_place_of_the_same_in_other_words(self) -> None:
        nested = {"dead_letter": {"retention": {"max_age": "P30D", "max_count": 500}}}
        flat = {"dead_letter_ttl": "PT1H", "dead_letter_max_size": 5}
        for said in (nested, flat, nested):
            configure("q", said)
            assert document(Queue.objects.get(name="q")) == said
        configure("q", {"dead_letter_ttl": "PT1H"})
        assert document(Queue.objects.get(name="q")) == {
            "dead_letter": {"retention": {"max_count": 500}}, "dead_letter_ttl": "PT1H"
        }  # fmt: skip

    def test_the_template_is_below_every_queue_and_the_job_above(self) -> None:
        configure("_default", {"default_timeout": 11, "default_retry": {"max_attempts": 7}})
        configure("q", {"default_retry": {"initial_interval": "9s"}})
        assert (make("q")["timeout_ms"], make("new")["timeout_ms"]) == (11_000, 11_000)
        assert (make("q")["max_attempts"], make("q", retry={"max_attempts": 2})["max_attempts"]) == (7, 2)
        assert make("q", timeout=3)["timeout_ms"] == 3_000

    def test_the_retry_policy_of_a_queue_lies_over_that_of_the_template_in_whatever_words(self) -> None:
        configure("_default", {"default_retry": {"initial_interval": "PT9S", "max_interval": "PT20S"}})
        configure("q", {"default_retry": {"initial_interval_ms": 60_000}})
        policy = retrypolicy.from_json(make("q")["retry"])
        assert (policy.initial_ms, policy.max_ms) == (60_000, 60_000)

    def test_events_tell_of_it(self) -> None:
        configure("q", {"max_size": 5}, by="me")
        configure("q", {"max_size": 6}, by="me")
        found = log.read(types=["queue.created", "queue.config_updated"]).events
        assert [event["type"] for event in found] == ["queue.created", "queue.config_updated", "queue.config_updated"]
        assert found[-1]["data"]["config"] == {"max_size": 6}


class TestAdmission:
    def test_a_type_that_is_not_allowed_is_refused_with_the_whole_batch(self) -> None:
        configure("q", {"allowed_job_types": ["email.*", "report.make"]})
        assert make(type="email.send")["state"] == "available"
        with pytest.raises(JobTypeNotAllowed) as refusal:
            push([{"type": t, "args": [], "queue": "q"} for t in ("report.make", "report.send")])
        assert refusal.value.details["index"] == 1
        assert Job.objects.count() == 1

    def test_a_draining_queue_delivers_and_takes_nothing(self) -> None:
        make()
        configure("q", {"draining": True})
        configuration.forget()
        with pytest.raises(QueuePaused):
            make()
        assert len(fetch(Fetch(["q"]))) == 1

    def test_all_queues_drain_if_the_template_says_so(self) -> None:
        make()
        configure("_default", {"draining": True})
        for queue in ("q", "new", "new"):
            with pytest.raises(QueuePaused):
                make(queue)
        configure("_default", {"draining": None})
        make("new")

    def test_the_status_of_a_queue_is_what_holds(self, admin_client: Client, django_assert_num_queries: Any) -> None:
        for queue in ("p", "q", "r"):
            make(queue)
        pause("p")
        configure("_default", {"draining": True})
        assert {queue["name"]: queue["state"] for queue in call("GET", "/queues").json()["queues"]} == {
            "default": "draining", "p": "paused", "q": "draining", "r": "draining",
        }  # fmt: skip
        assert call("GET", "/queues/q").json()["state"] == "draining"
        assert call("POST", "/queues/p/resume").json()["status"] == "draining"
        assert set(doctor.Site("default").status.values()) == {"draining"}
        assert ">draining</span>" in admin_client.get("/admin/django_ojs/queue/").content.decode()
        with django_assert_num_queries(1):
            assert {queue.status for queue in Queue.objects.exclude(pk=TEMPLATE).annotate(**ALL_DRAIN)} == {"draining"}
        configure("_default", {"draining": None})
        assert call("GET", "/queues/q").json()["state"] == "active"


class TestRemoval:
    def test_reject_refuses_while_jobs_are_alive_and_leaves_the_queue_open(self) -> None:
        row = make()
        answer = call("DELETE", "/queues/q")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        assert make()["state"] == "available"
        cancel([row["id"], *Job.objects.values_list("pk", flat=True)])
        assert call("DELETE", "/queues/q").json()["state"] == "deleted"
        assert not Queue.objects.filter(name="q").exists()

    def test_discard_ends_every_live_job_and_counts_it(self) -> None:
        for fields in ({}, {"pending": True}, {"scheduled_at": "2099-01-01T00:00:00Z"}):
            make(**fields)
        (claimed,) = fetch(Fetch(["q"]))
        done = remove("q", "discard")
        assert (done.jobs_affected, done.state) == (3, "deleted")
        assert set(Job.objects.values_list("state", flat=True)) == {"discarded"}
        assert Job.objects.get(pk=claimed["id"]).error["type"] == "queue_deleted"
        assert_exact()

    def test_move_takes_the_waiting_along_and_lets_the_active_finish(self) -> None:
        make()
        make(pending=True)
        (claimed,) = fetch(Fetch(["q"]))
        answer = call("DELETE", "/queues/q", {"strategy": "move", "target_queue": "other"})
        assert (answer.status_code, answer.json()["state"], answer.json()["jobs_affected"]) == (202, "draining", 1)
        assert_exact()
        fail_one(Failure(claimed["id"], {"message": "again"}))
        assert finish_removals() == 2
        assert Job.objects.filter(queue="other").count() == 2
        assert not Queue.objects.filter(name="q").exists()
        assert_exact()

    def test_what_a_killed_call_has_left_is_discarded_a_minute_later(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deletion, "BATCH", 2)
        for _ in range(3):
            make()
        with monkeypatch.context() as patch:
            patch.setattr(deletion, "_delete_if_empty", None)
            patch.setattr(deletion, "_discard", lambda *args, real=deletion._discard, **more: real(*args, **more) % 2)
            with pytest.raises(TypeError):
                remove("q", "discard")
        assert Job.objects.filter(state="available").count() == 1
        assert finish_removals() == 0
        frozen_clock.advance(minutes=2)
        assert finish_removals() == 2
        assert (Queue.objects.count(), Job.objects.filter(state="discarded").count()) == (0, 3)

    def test_the_second_of_two_calls_ends_with_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def discard(*args: Any, **more: Any) -> int:
            with monkeypatch.context() as patch:
                patch.setattr(deletion, "_discard", real)
                assert remove("q", "discard").jobs_affected == 1
            return 0

        make()
        real = deletion._discard
        monkeypatch.setattr(deletion, "_discard", discard)
        done = remove("q", "discard")
        assert (done.jobs_affected, done.state) == (0, "deleted")

    @pytest.mark.parametrize("strategy, target", [("move", "other"), ("discard", "")])
    def test_who_lets_the_queue_take_jobs_again_calls_its_removal_off(
        self, strategy: str, target: str, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make()
        fetch(Fetch(["q"]))
        with monkeypatch.context() as patch:
            patch.setattr(deletion, "_discard", lambda *args, **more: configure("q", {"draining": False}) and 0)
            assert remove("q", strategy, target).state == "draining"
        configure("q", {"draining": False})
        make()
        frozen_clock.advance(minutes=2)
        assert finish_removals() == 0
        assert list(Job.objects.values_list("queue", "state").order_by("state")) == [
            ("q", "active"), ("q", "available"),
        ]  # fmt: skip

    def test_a_removal_that_is_called_off_while_the_scheduler_is_at_another_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def called_off(name: str, **more: Any) -> bool:
            configure("q", {"draining": False})
            return real(name, **more)

        for name in ("a", "q"):
            make(name)
            deletion._begin(name, "move", "other", None, using="default")
        real = deletion._delete_if_empty
        monkeypatch.setattr(deletion, "_delete_if_empty", called_off)
        assert finish_removals() == 2
        assert set(Job.objects.values_list("queue", flat=True)) == {"other", "q"}

    def test_no_job_goes_round_and_round(self) -> None:
        for queue in ("a", "b", "c"):
            make(queue)
            fetch(Fetch([queue]))  # so that the queue stays until it has finished
        assert remove("a", "move", "b").state == "draining"
        assert remove("b", "move", "c").state == "draining", "a job may go further"
        for name, target in (("b", "a"), ("c", "a"), ("c", "b")):
            with pytest.raises(Conflict, match="moved back here"):
                remove(name, "move", target)
        answer = call("DELETE", "/queues/c", {"strategy": "move", "target_queue": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        assert not Queue.objects.get(name="c").draining
        assert remove("a", "move", "b").state == "draining", "repeating it is safe"
        assert remove("a", "move", "c").state == "draining", "and so is another target"
        assert remove("b", "move", "a").state == "draining", "which leads to c now"
        with pytest.raises(Conflict, match="moved back here"):
            remove("a", "move", "b")

    def test_no_job_is_moved_to_where_it_would_be_discarded(self) -> None:
        for queue in ("a", "b", "c"):
            make(queue)
        deletion._begin("c", "discard", "c", None, using="default")
        fetch(Fetch(["b"]))
        for name in ("a", "b"):
            with pytest.raises(Conflict, match="discarded"):
                remove(name, "move", "c")
        configure("c", {"draining": False})
        assert remove("b", "move", "c").state == "draining"
        deletion._begin("c", "discard", "c", None, using="default")
        with pytest.raises(Conflict, match="discarded"):
            remove("a", "move", "b")
        assert remove("a", "move", "d").state == "deleted"

    def test_moved_jobs_keep_no_key_of_the_old_queue(self) -> None:
        by_queue = {"keys": ["type", "queue"]}
        make(rate_limit={"concurrency": 1}, unique=by_queue)
        remove("q", "move", "other")
        with pytest.raises(Duplicate):
            make("other", unique=by_queue)
        make("q", unique=by_queue)
        assert list(Job.objects.filter(queue="other").values_list("rate_key", flat=True)) == ["queue:other"]

    def test_moved_jobs_are_due_but_for_those_that_wait_for_a_run(self, frozen_clock: Any) -> None:
        make(rate_limit={"rate": {"limit": 1, "period": "P1D"}, "on_limit": "reschedule"})
        make(rate_limit={"rate": {"limit": 1, "period": "P1D"}, "on_limit": "reschedule"})
        held = make()
        Job.objects.filter(pk=held["id"]).update(due_at=END_OF_TIME)
        later = make(scheduled_at="2099-01-01T00:00:00Z")
        assert len(fetch(Fetch(["q"], count=9))) == 1
        assert Job.objects.filter(state="available", due_at__gt=frozen_clock.now, due_at__lt=END_OF_TIME).exists()
        remove("q", "move", "other")
        assert len(fetch(Fetch(["other"], count=9))) == 1
        assert Job.objects.get(pk=held["id"]).due_at == END_OF_TIME
        assert Job.objects.get(pk=later["id"]).due_at.year == 2099

    def test_a_fetch_from_the_target_lets_the_moved_run_of_a_schedule_go(self) -> None:
        """As it does in the queue that the run was made for: the scheduler may be away."""
        configuration.create("q", {})
        template = {"type": "a.b", "queue": "q"}
        schedules.register({"name": "nightly", "cron": "@daily", "job_template": template, "overlap_policy": "enqueue"})
        _, first = runs.trigger("nightly")
        _, second = runs.trigger("nightly")
        remove("q", "move", "other")
        assert [row["id"] for row in fetch(Fetch(["other"], count=9))] == [first["id"]]
        ack_one(Ack(first["id"]))
        assert [row["id"] for row in fetch(Fetch(["other"], count=9))] == [second["id"]]

    @pytest.mark.parametrize(
        "strategy, target", [("burn", ""), ("move", ""), ("move", "q")],
    )  # fmt: skip
    def test_nonsense_is_refused(self, strategy: str, target: str) -> None:
        make()
        with pytest.raises(InvalidRequest):
            remove("q", strategy, target)
        assert not Queue.objects.get(name="q").draining

    def test_a_job_that_slips_in_while_its_queue_is_removed_keeps_it_open(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slip_in(*args: Any) -> None:
            configuration._remember(
                {"q": configuration.PLAIN}, "default"
            )  # as a process that looked at the queue a moment ago
            push([{"type": "a.b", "args": [], "queue": "q"}])

        configure("q", {})
        with monkeypatch.context() as patch:
            patch.setattr(audit, "append", slip_in)
            with pytest.raises(Conflict, match="have not ended"):
                remove("q")
        assert not Queue.objects.get(name="q").draining
        make()

    def test_what_is_not_there_and_what_must_stay(self) -> None:
        with pytest.raises(NotFound):
            remove("nowhere")
        make("default")
        with pytest.raises(InvalidRequest):
            remove("default", "discard")


class TestRetention:
    def test_a_workflow_is_kept_with_the_last_of_its_jobs(self, frozen_clock: Any) -> None:
        configure("_default", {"retention": {"completed": "PT1H"}})
        configure("long", {"retention": {"completed": "P30D"}})
        for queue in ("long", "q"):
            step = {"type": "a.b", "args": [], "options": {"queue": queue}}
            workflow.create({"type": "chain", "name": queue, "steps": [step]})
            ack_one(Ack(fetch(Fetch([queue]))[0]["id"]))
        frozen_clock.advance(hours=2)
        assert prune()["workflows"] == 1
        assert Workflow.objects.get().steps.get().queue == "long"
        frozen_clock.advance(days=30)
        assert prune()["workflows"] == 1

    def test_workflows_that_stay_are_passed_by_in_stretches(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.OJS = {"SEARCH_SECONDS": 0}
        monkeypatch.setattr(retention, "_STRETCH", 2)
        configure("_default", {"retention": {"completed": "PT1H"}})
        configure("long", {"retention": {"completed": "P30D"}})
        for queue in ["long"] * 5 + ["q"]:
            frozen_clock.advance(seconds=1)
            step = {"type": "a.b", "args": [], "options": {"queue": queue}}
            workflow.create({"type": "chain", "name": queue, "steps": [step]})
            ack_one(Ack(fetch(Fetch([queue]))[0]["id"]))
        frozen_clock.advance(hours=2)
        assert [prune()["workflows"] for _ in range(4)] == [0, 1, 0, 0]
        frozen_clock.advance(days=30)
        assert sum(prune()["workflows"] for _ in range(4)) == 5

    def test_a_queue_keeps_its_jobs_as_long_as_it_says_and_the_others_as_the_site_says(self, frozen_clock: Any) -> None:
        configure("short", {"retention": {"completed": "PT1H"}})
        configure("long", {"retention": {"completed": "P30D"}})
        for queue in ("short", "long", "q"):
            make(queue)
            ack_one(Ack(fetch(Fetch([queue]))[0]["id"]))
        left = lambda: set(Job.objects.values_list("queue", flat=True))  # noqa: E731
        frozen_clock.advance(hours=2)
        prune()
        assert left() == {"long", "q"}
        frozen_clock.advance(days=8)
        prune()
        assert left() == {"long"}
        frozen_clock.advance(days=30)
        prune()
        assert left() == set()
        assert_exact()

    def test_dead_letters_go_by_the_other_names_too(self, frozen_clock: Any) -> None:
        configure("short", {"dead_letter_ttl": "PT1H"})
        configure("few", {"dead_letter_max_size": 1})
        for queue in ("short", "few", "few"):
            make(queue, retry={"max_attempts": 1})
            frozen_clock.advance(seconds=1)
            fail_one(Failure(fetch(Fetch([queue]))[0]["id"], {"message": "no"}))
        frozen_clock.advance(hours=2)
        prune()
        assert Job.objects.get().queue == "few"

    @pytest.mark.parametrize("said_by", ["q", "_default"])
    def test_the_dead_letters_of_a_queue_are_bounded_and_their_end_is_told(
        self, frozen_clock: Any, said_by: str
    ) -> None:
        configure(said_by, {"dead_letter": {"retention": {"max_count": 2}}})
        for _ in range(5):
            make(retry={"max_attempts": 1})
            frozen_clock.advance(seconds=1)
            fail_one(Failure(fetch(Fetch(["q"]))[0]["id"], {"message": "no"}))
        kept = list(Job.objects.order_by("-finished_at").values_list("pk", flat=True)[:2])
        prune()
        assert set(Job.objects.values_list("pk", flat=True)) == set(kept)
        (event,) = log.read(types=["dead_letter.pruned"]).events
        assert (event["data"]["queue"], event["data"]["count"]) == ("q", 3)
        assert_exact()

    def test_a_queue_keeps_as_many_dead_letters_as_it_says_whatever_the_template_says(self, frozen_clock: Any) -> None:
        configure("_default", {"dead_letter": {"retention": {"max_count": 0}}})
        configure("q", {"dead_letter": {"retention": {"max_count": 1}}})
        for queue in ("q", "q", "other"):
            make(queue=queue, retry={"max_attempts": 1})
            frozen_clock.advance(seconds=1)
            fail_one(Failure(fetch(Fetch([queue]))[0]["id"], {"message": "no"}))
        assert prune()["dead_letters"] == 2
        assert Job.objects.get().queue == "q"


class TestHTTP:
    def test_put_creates_merges_and_mirrors_under_both_paths(self) -> None:
        put = call("PUT", "/admin/queues/q/config", {"backpressure": {"max_depth": 10}})
        assert put.status_code == 200, put.json()
        assert put.json()["config"] == {"backpressure": {"max_depth": 10}}
        call("PUT", "/queues/q/config", {"config": {"backpressure": {"strategy": "reject"}}})
        shown = call("GET", "/queues/q/config").json()
        assert shown["config"] == {"backpressure": {"max_depth": 10, "strategy": "reject"}}
        assert call("GET", "/queues/q/stats").json()["stats"]["max_depth"] == 10

    def test_post_makes_a_queue_once(self) -> None:
        made = call("POST", "/queues", {"name": "new", "config": {"concurrency": 2}})
        assert (made.status_code, made.json()["config"], made.json()["state"]) == (201, {"concurrency": 2}, "active")
        assert call("POST", "/queues", {"name": "new"}).status_code == 409
        assert call("POST", "/queues", {"name": "New!"}).status_code == 400
        assert call("POST", "/queues", {"name": "x", "config": {"concurrency": "two"}}).status_code == 400
        assert not Queue.objects.filter(name="x").exists()

    def test_nothing_of_a_configuration_is_passed_over_beside_it(self) -> None:
        for answer in (
            call("POST", "/queues", {"name": "q", "config": {"concurrency": 2}, "max_size": 3}),
            call("PUT", "/queues/q/config", {"config": {"concurrency": 2}, "max_size": 3}),
        ):
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].endswith("belongs into config.")
        assert not Queue.objects.filter(name="q").exists()
        assert call("POST", "/queues", {"name": "q", "concurrency": 2}).status_code == 201
        shown = call("GET", "/queues/q/config").json()
        assert shown["config"] == {"concurrency": 2}
        shown["config"]["concurrency"] = 3
        changed = call("PUT", "/queues/q/config", shown)  # as clients do: what was read, with a change
        assert changed.json()["config"] == {"concurrency": 3}

    def test_the_template_is_no_queue(self) -> None:
        assert call("PUT", "/queues/_default/config", {"default_timeout": 5}).status_code == 200
        assert "_default" not in [queue["name"] for queue in call("GET", "/queues").json()["queues"]]
        assert call("GET", "/queues/_default").status_code == 404
        assert call("GET", "/queues/q-new/config").status_code == 404
        make()
        assert call("GET", "/queues/q/config").json()["effective_config"] == {"default_timeout": 5}

    def test_a_body_that_is_no_object_or_names_a_bad_queue_is_refused(self) -> None:
        assert call("PUT", "/queues/q/config", [1]).status_code == 400
        assert call("PUT", "/queues/Q!/config", {}).status_code == 400
        assert not Queue.objects.filter(name="q").exists()

    def test_a_configuration_that_no_event_could_hold_is_refused(self) -> None:
        deep: Any = []
        for _ in range(190):
            deep = [deep]
        assert call("PUT", "/queues/q/config", {"x_deep": deep}).status_code == 400
        assert not Queue.objects.filter(name="q").exists()

    def test_statistics_in_all_shapes(self, frozen_clock: Any) -> None:
        for _ in range(3):
            make()
        frozen_clock.advance(seconds=2)
        (row,) = fetch(Fetch(["q"]))
        frozen_clock.advance(seconds=1)
        ack_one(Ack(row["id"]))
        body = call("GET", "/queues/q/stats").json()
        assert body["queue"]["available"] == body["available"] == body["stats"]["available"] == 2
        assert (body["queue"]["name"], body["queue"]["total"], body["stats"]["depth"]) == ("q", 3, 2)
        stats = body["stats"]
        assert (stats["completed_last_hour"], stats["completed_today"], stats["failed_today"]) == (1, 1, 0)
        assert (stats["avg_duration_ms"], stats["avg_wait_ms"]) == (1000, 2000)
        assert stats["throughput_per_second"] > 0
        exact = call("GET", "/queues/q/stats", **{"OJS-Version": "1.0"}).json()
        assert (exact["queue"], exact["stats"]["queue"]) == ("q", "q")
        assert call("GET", "/queues/q").json()["queue"]["completed"] == 1
        (listed,) = [queue for queue in call("GET", "/queues").json()["queues"] if queue["name"] == "q"]
        assert (listed["depth"], listed["completed"]) == (2, 1)
        assert call("GET", "/health").json()["jobs"]["available"] == 2

    def test_a_queue_never_seen_has_zeros(self) -> None:
        body = call("GET", "/queues/never/stats").json()
        assert (body["queue"]["total"], body["stats"]["max_depth"], body["stats"]["avg_wait_ms"]) == (0, 0, 0)
        assert not Queue.objects.filter(name="never").exists()

    def test_periods_end(self, frozen_clock: Any) -> None:
        make()
        ack_one(Ack(fetch(Fetch(["q"]))[0]["id"]))
        frozen_clock.advance(hours=2)
        stats = call("GET", "/queues/q/stats").json()["stats"]
        assert (stats["completed_last_hour"], stats["completed_today"], stats["throughput_per_second"]) == (0, 1, 0)
        frozen_clock.advance(days=1)
        stats = call("GET", "/queues/q/stats").json()["stats"]
        assert (stats["completed_today"], stats["completed"]) == (0, 1)
        assert clock.now() == frozen_clock.now


@pytest.mark.parametrize("name", ["Import", "", "a b", "é", "x" * 129])
def test_no_function_makes_a_queue_of_a_name_that_none_can_have(name: str) -> None:
    make("q")
    doors: list[Any] = [
        lambda: configuration.pause(name), lambda: configuration.resume(name), lambda: configure(name, {"max_size": 5}),
        lambda: configuration.create(name, {}), lambda: remove("q", "move", name), lambda: ratelimits.override(
            f"queue:{name}", {"concurrency": 1}
        ),
    ]  # fmt: skip
    for door in doors:
        with pytest.raises(InvalidRequest):
            door()
    for switch in (configuration.pause, configuration.resume):
        with pytest.raises(InvalidRequest):
            switch("_default")
    assert list(Queue.objects.values_list("name", flat=True)) == ["q"]


@pytest.mark.parametrize("member", ["visibility_timeout", "notes"])
def test_a_member_that_nests_too_deeply_is_named(member: str) -> None:
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidRequest) as refusal:
        configure("mail", {"concurrency": 5, member: deep})
    assert refusal.value.details["field"] == member
    assert not Queue.objects.filter(name="mail").exists()
