# SPDX-License-Identifier: MIT
"""A worker makes the driver's plan from text and does its units; a schedule says which, to whom."""

import json
import shutil
from dataclasses import replace

import pytest
from foreign import settings

from attnscope.engine.engine import Engine
from attnscope.engine.executors.executor import Executor, Outcome
from attnscope.engine.executors.schedule import Schedule
from attnscope.engine.executors.worker import Worker, checkpoints_to_json
from attnscope.engine.prepared_run import prepare
from attnscope.engine.run_study import resume, run
from attnscope.errors import UnitsFailed
from folders import series, table_bytes

STUDY = "token_likelihood"


class Hands(Executor):
    """Workers in this process, given what workers elsewhere are given; the last one to come does most."""

    def __init__(self, count, nodes=None):
        self.nodes = nodes or [f"node {at}" for at in range(count)]
        self.done = {at: [] for at in range(count)}

    def outcomes(self, engine):
        plan, schedule = engine.plan, Schedule(engine)
        workers = [
            Worker(engine.settings.to_yaml(), checkpoints_to_json(plan.checkpoints_by_model), 1)
            for _ in self.nodes
        ]
        place = {unit.id: at for at, unit in enumerate(plan.units)}
        assert {worker.begin()["plan"] for worker in workers} == {plan.digest}
        while not schedule.finished:
            for at in reversed(range(len(workers))):
                unit = schedule.next(at, self.nodes[at])
                if unit is None:
                    continue
                sources = [source.id for source in plan.reads(unit) if source.id in engine.store]
                reads = {
                    place[source]: {
                        name: engine.store.read(source, name) for name in engine.store.rows(source)
                    }
                    for source in sources
                }
                answer = self.do(at, workers[at], place[unit.id], plan.skipped, reads)
                assert schedule.done(at) is unit
                self.done[at].append(unit)
                if "skipped" in answer:
                    outcome = schedule.refused(unit, self.nodes[at], answer["skipped"], self.nodes)
                elif "lost" in answer:
                    outcome = schedule.retry(unit, answer["lost"])
                else:
                    counts = {"tally": answer["tally"], "notes": answer["notes"]}
                    outcome = Outcome(unit, answer["tables"], machine=self.nodes[at], **counts)
                if outcome is not None:
                    yield outcome
        for worker in workers:
            worker.end()

    def do(self, at, worker, *arguments):
        return worker.do(*arguments)


def test_workers_make_the_tables_of_one_process(inputs, uninterrupted, tmp_path):
    hands = Hands(3)
    results = run(settings(STUDY, inputs, tmp_path), progress=False, executor=hands)
    assert table_bytes(results.path) == table_bytes(uninterrupted(STUDY))
    machines = results.provenance["machines"]
    assert {name: facts_of_machine["units"] for name, facts_of_machine in machines.items()} == {
        name: len(hands.done[at]) for at, name in enumerate(hands.nodes)
    }
    for at in hands.done:
        held = [unit.checkpoint for unit in hands.done[at] if unit.checkpoint and not unit.variant]
        assert len(set(held)) == len([1 for a, b in zip(held, [None, *held], strict=False) if a != b])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state_clouds", "weight_changes"])
def test_sums_chains_and_pairs_go_to_workers(inputs, uninterrupted, tmp_path, name):
    results = run(settings(name, inputs, tmp_path), progress=False, executor=Hands(2))
    assert table_bytes(results.path) == table_bytes(uninterrupted(name))


def test_a_unit_that_workers_die_on_is_given_up_by_name_and_all_others_are_stored(
    inputs, uninterrupted, tmp_path, messages
):
    class Deadly(Hands):
        def do(self, at, worker, number, *rest):
            return {"lost": f"{self.nodes[at]} died"} if number == 2 else worker.do(number, *rest)

    hands = Deadly(2)
    with pytest.raises(
        UnitsFailed, match=r"1 of \d+ units were given up.*000002-.*\(growing step0\).*died, at"
    ):
        run(settings(STUDY, inputs, tmp_path), progress=False, say=messages.append, executor=hands)
    tries = [unit for units in hands.done.values() for unit in units if unit.folder.startswith("000002")]
    assert len(tries) == 3
    facts = json.loads((tmp_path / "a" / "provenance.json").read_text("utf-8"))
    assert facts["state"] == "failed"
    assert "000002" in facts["failed"][0]
    assert not any("best" in unit.stage for units in hands.done.values() for unit in units)
    assert table_bytes(resume(tmp_path / "a", progress=False).path) == table_bytes(uninterrupted(STUDY))


@pytest.mark.slow
def test_a_checkpoint_that_one_node_cannot_load_is_done_by_another(inputs, uninterrupted, tmp_path):
    class Poor(Hands):
        def do(self, at, worker, number, *rest):
            unit = worker._engine.plan.units[number]
            if at == 0 and unit.checkpoint and unit.checkpoint.step == 2:
                return {"skipped": "growing step2: no memory"}
            return worker.do(number, *rest)

    hands = Poor(2)
    results = run(settings(STUDY, inputs, tmp_path), progress=False, executor=hands)
    assert table_bytes(results.path) == table_bytes(uninterrupted(STUDY))
    tried = [unit for unit in hands.done[0] if unit.checkpoint and unit.checkpoint.step == 2]
    assert len(tried) == 1


@pytest.mark.slow
def test_a_checkpoint_that_no_node_can_load_is_skipped_as_in_one_process(inputs, tmp_path, messages):
    home = tmp_path / "growing"
    shutil.copytree(inputs[0], home)
    file = home / "step2" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    local = run(settings(STUDY, (home, inputs[1]), tmp_path / "one"), progress=False)
    by_workers = run(settings(STUDY, (home, inputs[1]), tmp_path / "two"), progress=False, executor=Hands(2))
    assert table_bytes(by_workers.path) == table_bytes(local.path)
    assert by_workers.provenance["skipped"] == local.provenance["skipped"]


def test_what_is_skipped_strands_once_when_no_worker_is_left(inputs, tmp_path):
    """The driver of a cluster skipped the same checkpoint for ever."""
    engine = Engine(prepare(settings("moved_positions", inputs, tmp_path)), progress=False)
    engine.folder.mkdir()
    engine.store.open({unit.id: unit.folder for unit in engine.plan.units})
    schedule = Schedule(engine)
    unit = schedule.next("worker", "poor")
    assert schedule.done("worker") is unit
    assert schedule.refused(unit, "poor", "no memory", {"poor", "rich"}) is None
    outcomes = list(schedule.stranded(set()))
    assert [(outcome.unit, outcome.skipped) for outcome in outcomes] == [(unit, "no memory")]
    engine.plan.leave_out([unit.checkpoint], "no memory")
    assert list(schedule.stranded(set())) == []


def test_a_worker_says_which_files_it_does_not_have(inputs, tmp_path):
    home = series(tmp_path / "growing", steps=(0, 2))
    engine = Engine(prepare(settings("moved_positions", (home, inputs[1]), tmp_path)), progress=False)
    plan = engine.plan
    worker = Worker(engine.settings.to_yaml(), checkpoints_to_json(plan.checkpoints_by_model), 1)
    assert worker.begin()["plan"] == plan.digest
    at = next(at for at, unit in enumerate(plan.units) if unit.checkpoint.step == 2)
    shutil.move(home / "step2", tmp_path / "away")
    assert "growing step2: there is no folder" in worker.do(at, [], {})["skipped"]
    shutil.copytree(home / "step0", home / "step2")
    assert "lie other weights than the driver found" in worker.do(at, [], {})["skipped"]
    shutil.rmtree(home / "step2")
    shutil.move(tmp_path / "away", home / "step2")
    assert set(worker.do(at, [], {})["tables"]) == {"samples", "scores"}
    worker.end()


def test_a_worker_that_cannot_plan_says_why(inputs, tmp_path):
    engine = Engine(prepare(settings("moved_positions", inputs, tmp_path)), progress=False)
    plan = engine.plan
    text = engine.settings.to_yaml().replace(str(inputs[1]), str(tmp_path / "nowhere.txt"))
    answer = Worker(text, checkpoints_to_json(plan.checkpoints_by_model), 1).begin()
    assert answer["plan"] == ""
    assert "nowhere.txt" in answer["error"]
    other = {
        0: [
            (replace(checkpoint, path="/nowhere"), weights)
            for checkpoint, weights in plan.checkpoints_by_model[0]
        ]
    }
    assert "no unit" not in Worker(engine.settings.to_yaml(), checkpoints_to_json(other), 1).begin()["plan"]
