# SPDX-License-Identifier: MIT
"""The stream: never more than two layers alive, and a whole model whatever happens in the middle."""

import copy
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import models
from attnscope.capture import capture
from attnscope.capture.implementation import configs
from models import MapCount

LAYERS = 6


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return models.tiny("llama", num_hidden_layers=LAYERS)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """After every test here: no worker thread, no hook, the implementation the model came with."""
    model = request.getfixturevalue("model") if "model" in request.fixturenames else None
    yield
    assert not [t for t in threading.enumerate() if t.name == "attnscope-capture"]
    if model is not None:
        assert_uncaptured(model)


def assert_uncaptured(model):
    assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def born_at_last(count, number):
    """The worker allocates so many maps within five seconds."""
    deadline = time.monotonic() + 5.0
    while count.born < number and time.monotonic() < deadline:
        time.sleep(0.001)
    assert count.born == number


def test_at_most_two_layers_are_alive(model, monkeypatch):
    inputs = models.text(model)
    with capture(model) as recording:
        count = MapCount(monkeypatch)
        for layer in recording.run(**inputs):
            time.sleep(0.02)  # the worker has time to run as far ahead as it may
            assert layer.attention.shape == (2, 4, 37, 37)
    assert count.born == LAYERS
    assert count.most == 2


def test_the_next_layer_is_computed_while_the_last_is_in_use(model, monkeypatch):
    inputs = models.text(model)
    with capture(model) as recording:
        count = MapCount(monkeypatch)
        run = recording.run(**inputs)
        first = next(run)
        born_at_last(count, 2)
        time.sleep(0.05)
        assert count.born == 2, "the worker ran more than one layer ahead"
        assert first.index == 0


def test_the_last_layer_of_a_pass_counts_in_the_next_one(model, monkeypatch):
    """A loop over passes holds it in its variable until the next pass gives the first layer."""
    inputs = models.text(model)
    with capture(model) as recording:
        *_, last = (layer for layer in recording.run(**inputs) if layer.index == LAYERS - 1)
        count = MapCount(monkeypatch)
        run = recording.run(**inputs)
        first = next(run)
        time.sleep(0.05)
        assert count.born == 1, "a third layer was begun while two were held"
        assert (last.index, first.index) == (LAYERS - 1, 0)
        del last
        born_at_last(count, 2)


def test_kept_layers_stay_intact(model):
    inputs = models.text(model)
    with capture(model, sites=("attention", "query", "key", "value", "hidden")) as recording:
        layers = list(recording.run(**inputs))
        copies = [{k: v.clone() for k, v in layer.tensors.items()} for layer in layers]
        again = list(recording.run(**inputs))
    for layer, saved, repeated in zip(layers, copies, again, strict=True):
        for site, tensor in saved.items():
            assert torch.equal(layer.tensors[site], tensor)
            assert torch.equal(repeated.tensors[site], tensor)


def test_leaving_the_loop_stops_the_model(model):
    inputs = models.text(model)
    ran = []
    handle = model.model.layers[LAYERS - 1].register_forward_hook(lambda *_: ran.append(1))
    with capture(model) as recording:
        ran.clear()
        for layer in recording.run(**inputs):
            if layer.index == 1:
                break
        assert not [t for t in threading.enumerate() if t.name == "attnscope-capture"]
        assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}
        assert not ran
    handle.remove()


def test_the_end_of_the_block_closes_a_run_that_is_still_held(model):
    inputs = models.text(model)
    with capture(model) as recording:
        run = recording.run(**inputs)
        next(run)
    assert_uncaptured(model)
    assert next(run, None) is None


def test_a_run_that_is_never_read_does_nothing(model):
    with capture(model) as recording:
        recording.run(**models.text(model))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_loop_restores_the_model(model, error):
    inputs = models.text(model)
    with torch.no_grad():
        before = model(**inputs).logits

    def consume():
        with capture(model) as recording:
            for layer in recording.run(**inputs):
                if layer.index == 2:
                    raise error("in the loop")

    with pytest.raises(error, match="in the loop"):
        consume()
    gc.collect()
    assert_uncaptured(model)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, before)


class Interrupted(BaseException):
    """Like Ctrl-C: not an Exception."""


@pytest.mark.parametrize("error", [ZeroDivisionError, Interrupted, StopIteration])
def test_an_error_in_the_model_reaches_the_loop(model, error):
    inputs = models.text(model)

    def fail(*_):
        raise error("in the model")

    with capture(model) as recording:
        handle = model.model.layers[3].mlp.register_forward_hook(fail)
        seen = []

        def consume():
            for layer in recording.run(**inputs):
                seen.append(layer.index)

        # StopIteration would end the loop as if the model had finished.
        with pytest.raises(RuntimeError if error is StopIteration else error):
            consume()
        handle.remove()
        assert seen == [0, 1, 2, 3]
        assert [layer.index for layer in recording.run(**inputs)] == list(range(LAYERS))


def test_ctrl_c_while_waiting_for_a_slow_layer(model):
    import _thread

    inputs = models.text(model)
    with capture(model) as recording:
        handle = model.model.layers[2].register_forward_pre_hook(lambda *_: time.sleep(0.4))
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            for _layer in recording.run(**inputs):
                pass
        timer.join()
        handle.remove()
    assert_uncaptured(model)


def test_gradients_are_off_inside_and_untouched_outside(model):
    inputs = models.text(model)
    assert torch.is_grad_enabled()
    with capture(model, sites=("attention", "hidden", "value")) as recording:
        for layer in recording.run(**inputs):
            assert torch.is_grad_enabled()
            assert not any(t.requires_grad for t in layer.tensors.values())
        assert not recording.output.logits.requires_grad


def test_nested_runs_see_their_own_layers(model):
    inputs, other = models.text(model), models.text(model, n=11, batch=1)
    seen = {"outer": [], "inner": []}
    with capture(model) as outer, capture(model, layers=[0, -1]) as inner:
        for layer in outer.run(**inputs):
            seen["outer"].append((layer.index, layer.attention.shape[-1]))
            for small in inner.run(**other):
                seen["inner"].append((small.index, small.attention.shape[-1]))
    assert seen["outer"] == [(i, 37) for i in range(LAYERS)]
    assert seen["inner"] == [(0, 11), (LAYERS - 1, 11)] * LAYERS


def test_interleaved_runs_do_not_mix(model):
    inputs, other = models.text(model), models.text(model, n=11, batch=1)
    with capture(model) as a, capture(model) as b:
        undisturbed = [layer.attention.clone() for layer in a.run(**other)]
        for layer, other_layer in zip(a.run(**inputs), b.run(**other), strict=True):
            assert layer.attention.shape[-1] == 37
            assert torch.equal(other_layer.attention, undisturbed[other_layer.index])


def test_two_threads_take_turns_on_one_model(model):
    inputs = [models.text(model, seed=s) for s in range(4)]
    with capture(model) as recording:
        expected = [[layer.attention.clone() for layer in recording.run(**x)] for x in inputs]
    results: dict[int, list[torch.Tensor]] = {}

    def work(i):
        with capture(model) as recording:
            results[i] = [layer.attention.clone() for layer in recording.run(**inputs[i])]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for i in range(4):
        assert len(results[i]) == LAYERS
        assert all(torch.equal(a, b) for a, b in zip(results[i], expected[i], strict=True))


@pytest.mark.parametrize("waits", ["joins", "asks a future"])
def test_a_loop_that_waits_for_a_run_of_its_model_is_an_error(model, waits):
    """Both threads waited for each other, for ever."""
    inputs, errors = models.text(model), []

    def work():
        try:
            with capture(model) as recording:
                list(recording.run(**inputs))
        except RuntimeError as error:
            errors.append(str(error))

    with capture(model) as recording, ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        for _layer in recording.run(**inputs):
            if waits == "joins":
                thread = threading.Thread(target=work, name="another", daemon=True)
                thread.start()
                thread.join(30)
            else:
                pool.submit(work).result(30)
            break
    assert len(errors) == 1
    assert "in thread MainThread, whose loop over layers waits for thread " in errors[0]
    assert ("another" if waits == "joins" else "pool_0") in errors[0]


def test_a_run_that_waits_long_says_for_whom(model, monkeypatch):
    """No thread can see that a loop elsewhere waits for an event, so a long wait warns."""
    from attnscope.capture import implementation as module

    monkeypatch.setattr(module, "_SAY_AFTER", 0.3)
    inputs, event = models.text(model), threading.Event()

    def work():
        with capture(model) as recording:
            list(recording.run(**inputs))

    thread = threading.Thread(target=work, name="another", daemon=True)

    def loop():
        with capture(model) as recording:
            for _layer in recording.run(**inputs):
                thread.start()
                event.wait(2)
                break
            thread.join(30)

    words = r"thread another has waited 0.3 s for the run of LlamaForCausalLM in thread MainThread to end"
    with pytest.warns(UserWarning, match=words):
        loop()
    assert not thread.is_alive()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5"])
def test_a_bystander_gets_what_it_always_got(name):
    model = models.tiny(name)
    inputs = models.text(model, padding="right")
    if name == "gemma2":
        # Not every transformers' sdpa caps the logits; what a bystander gets always does.
        model.set_attn_implementation("eager")
    with torch.no_grad():
        before = model(**inputs)[0]
    with capture(model) as recording:
        count = 0
        for _layer in recording.run(**inputs):
            count += 1
            outside: list[torch.Tensor] = []

            def other(outside=outside):
                with torch.no_grad():
                    outside.append(model(**inputs)[0])

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            with torch.no_grad():
                outside.append(model(**inputs)[0])
            for logits in outside:
                assert float((logits - before).abs().max()) < 1e-4
    expected = len(recording._plan.parts)
    assert count == expected, "a bystander's layers came out of the stream"


@pytest.mark.parametrize("name", ["llama", "albert"])
def test_a_bystander_does_not_disturb_the_stream(name):
    """ALBERT's layers differ by the order of calls alone."""
    model = models.tiny(name)
    inputs, other = models.text(model, padding="left"), models.text(model, seed=5, n=20)
    sites = ("attention", "hidden", "attention_output", "mlp_output")
    with capture(model, sites=sites) as recording:
        undisturbed = list(recording.run(**inputs))
        for layer in recording.run(**inputs):
            with torch.no_grad():
                model(**other)
            calm = undisturbed[layer.index]
            assert (layer.index, layer.call) == (calm.index, calm.call)
            assert torch.equal(layer.valid, calm.valid)
            for site in sites:
                assert torch.equal(layer.tensors[site], calm.tensors[site])


def test_a_model_called_by_the_captured_one_is_a_bystander(model):
    """Both under our name, one of them captured by the run that calls the other."""
    second = models.tiny("llama", seed=1)
    inputs = models.text(model)
    with torch.no_grad():
        expected = second(**inputs).logits
    logits = []
    with capture(model) as recording, capture(second) as other:
        held = other.run(**inputs)
        next(held)
        handle = model.model.layers[0].register_forward_hook(
            lambda *_: logits.append(second(**inputs).logits)
        )
        assert [layer.index for layer in recording.run(**inputs)] == list(range(LAYERS))
        handle.remove()
        held.close()
    assert float((logits[0] - expected).abs().max()) < 1e-4


def test_a_bystander_may_train(model):
    inputs = models.text(model)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    expected = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    with capture(model) as recording:
        run = recording.run(**inputs)
        next(run)
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        run.close()
    assert torch.allclose(model.model.layers[0].self_attn.q_proj.weight.grad, expected, atol=1e-6)
    model.zero_grad()


def test_a_bystander_whose_mask_was_left_out_stays_causal(model):
    """Its mask was made under sdpa (none: 'is causal'), its attention runs under our name."""
    inputs = {"input_ids": models.text(model)["input_ids"]}
    with torch.no_grad():
        before = model(**inputs).logits
    halfway, go_on = threading.Event(), threading.Event()

    def pause(*_):
        if threading.current_thread().name == "bystander":
            halfway.set()
            go_on.wait(30)

    handle = model.model.layers[0].register_forward_pre_hook(pause)
    logits: list[torch.Tensor] = []

    def work():
        with torch.no_grad():
            logits.append(model(**inputs).logits)

    thread = threading.Thread(target=work, name="bystander")
    with capture(model) as recording:
        thread.start()
        halfway.wait(30)
        run = recording.run(**inputs)
        next(run)
        go_on.set()
        thread.join()
        run.close()
    handle.remove()
    assert float((logits[0] - before).abs().max()) < 1e-5


def test_a_deep_copy_taken_during_a_run_still_works(model):
    inputs = models.text(model)
    with torch.no_grad():
        before = model(**inputs).logits
        with capture(model) as recording:
            run = recording.run(**inputs)
            next(run)
            copied = copy.deepcopy(model)
            run.close()
        after = copied(**inputs).logits
    assert float((after - before).abs().max()) < 1e-4


def test_mixed_implementations_are_restored_one_by_one():
    models.needs_attention_interface("t5")
    model = models.tiny("t5")
    model.encoder.config._attn_implementation_internal = "eager"
    before = [c._attn_implementation_internal for c in configs(model)]
    assert set(before) == {"eager", "sdpa"}
    with capture(model) as recording:
        assert len(list(recording.run(**models.text(model)))) == 7
    assert [c._attn_implementation_internal for c in configs(model)] == before


@pytest.mark.parametrize("lazy", [False, True])
def test_a_capture_in_a_hook_of_a_captured_run(model, lazy):
    """It is part of that run: it waits for no other one, and asks for the attention function that runs."""
    ids = torch.arange(3, 9)[None]
    inner, outcome = [], []

    def hook(*_):
        if not inner:
            inner.append(None)
            with capture(model, lazy=lazy) as recording:
                inner.extend(layer.index for layer in recording.run(input_ids=ids))

    def work():
        try:
            with capture(model) as recording:
                handle = model.model.layers[1].register_forward_pre_hook(hook)
                outcome.extend(layer.attention for layer in recording.run(input_ids=ids))
        except RuntimeError as error:
            outcome.append(error)
        finally:
            handle.remove()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive()
    if lazy:
        assert "being run with attention 'attnscope' further up" in str(outcome[-1])
        return
    with capture(model) as recording:
        expected = [layer.attention for layer in recording.run(input_ids=ids)]
    assert inner[1:] == list(range(LAYERS))
    assert all(map(torch.equal, outcome, expected))
    assert len(outcome) == len(expected)
