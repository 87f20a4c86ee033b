# SPDX-License-Identifier: MIT
"""ruscio2026 on models: each difference from the exact definitions, shown."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
import models
from attnscope.protocols import ruscio2026
from knowing_study import letters

LENGTHS = (12, 7, 9, 12, 5)


def build_model(name="gpt2", dtype=torch.float64):
    return models.tiny(name, implementation="eager").to(dtype)


def block_of(model, layer):
    inner = getattr(model, "transformer", None)
    return inner.h[layer] if inner is not None else model.model.layers[layer]


def prompts(lengths=LENGTHS, side="right"):
    """Rows of different lengths, padded; and each alone."""
    draw = torch.Generator().manual_seed(5)
    prompt_ids = [torch.randint(3, 97, (n,), generator=draw) for n in lengths]
    ids = torch.zeros(len(prompt_ids), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, token_ids in enumerate(prompt_ids):
        place = slice(0, len(token_ids)) if side == "right" else slice(ids.shape[1] - len(token_ids), None)
        ids[row, place], mask[row, place] = token_ids, 1
    single_prompts = [
        {"input_ids": ids[None], "attention_mask": torch.ones(1, len(ids))} for ids in prompt_ids
    ]
    return {"input_ids": ids, "attention_mask": mask}, single_prompts


def unit(seed=3, width=96):
    direction = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return direction / direction.norm()


@pytest.mark.parametrize("one_sided", [False, True])
def test_fisher_is_half_of_the_fisher_information(one_sided):
    model, b = build_model(), unit()
    _, single_prompts = prompts()
    for inputs in single_prompts[:2]:
        exact = asc.sensitivity(model, inputs, 1, b[None]).directional_fisher.item()
        logits = [
            ruscio2026.fisher(model, inputs, block_of(model, 1), sign * b, epsilon=1e-3, one_sided=one_sided)
            for sign in (1, -1)
        ]
        assert np.mean(logits) == pytest.approx(exact / 2, rel=1e-3)


def test_the_step_is_lost_in_bfloat16():
    """Rounding is of the number's own size at ε = .05, and all of it at 1e-3."""
    _, single_prompts = prompts()
    model, half = build_model("llama", torch.float32), build_model("llama", torch.bfloat16)
    for seed in (0, 1):
        b = unit(seed)
        exact = asc.sensitivity(model, single_prompts[0], 1, b[None]).directional_fisher.item() / 2
        assert ruscio2026.fisher(model, single_prompts[0], block_of(model, 1), b) == pytest.approx(
            exact, rel=0.1
        )
        large, small = (
            ruscio2026.fisher(half, single_prompts[0], block_of(half, 1), b, epsilon=epsilon)
            for epsilon in (0.05, 1e-3)
        )
        assert large > 1.2 * exact
        assert small == 0 or small > 10 * exact
    # of the step itself, on a state as long as theirs in as many dimensions
    draw = torch.Generator().manual_seed(0)
    state, step = (torch.nn.functional.normalize(torch.randn(3072, generator=draw), dim=0) for _ in "ab")
    state = (43.6 * state).bfloat16()
    for epsilon, share in ((0.05, 0.57), (1e-3, 0.015)):
        left = (state + (epsilon * step).bfloat16()).double() - state.double()
        assert float(left @ step.double()) / epsilon == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("name", ["fisher", "hessian", "jacobian"])
def test_padding_on_the_right_reads_padding_tokens(name):
    """In all rows but the longest; on the left each row's last token is its own."""
    model, b = build_model("llama", torch.float32), unit()
    function, block = getattr(ruscio2026, name), block_of(model, 1)
    right, single_prompts = prompts((12, 7))
    mean_of_singles = np.mean([function(model, prompt, block, b, epsilon=1.0) for prompt in single_prompts])
    assert function(model, right, block, b, epsilon=1.0) != pytest.approx(mean_of_singles, rel=1e-3)
    left, _ = prompts((12, 7), "left")
    assert function(model, left, block, b, epsilon=1.0) == pytest.approx(mean_of_singles, rel=1e-3)
    both_prompts, single_prompts = prompts((12, 12))
    mean_of_singles = np.mean([function(model, prompt, block, b, epsilon=1.0) for prompt in single_prompts])
    assert function(model, both_prompts, block, b, epsilon=1.0) == pytest.approx(mean_of_singles, rel=1e-3)


def test_batches_of_four_are_as_wide_as_their_longest_and_count_alike():
    model, b = build_model("llama"), unit()
    block = block_of(model, 1)
    inputs, single_prompts = prompts()
    first = {name: value[:4] for name, value in inputs.items()}
    parts = [ruscio2026.fisher(model, prompt, block, b) for prompt in (first, single_prompts[4])]
    assert ruscio2026.fisher(model, inputs, block, b) == pytest.approx(np.mean(parts), rel=1e-9)
    assert ruscio2026.fisher(model, inputs, block, b, batch=5) != pytest.approx(np.mean(parts), rel=1e-3)


def test_a_negative_divergence_counts_as_none(monkeypatch):
    """What rounds to a divergence below 0 in half precision is set to 0, batch by batch."""
    from attnscope.protocols.ruscio2026 import sensitivity

    _, single_prompts = prompts((5, 5))
    inputs = {name: torch.cat([prompt[name] for prompt in single_prompts]) for name in single_prompts[0]}
    plain = torch.tensor([[0.0, 0.0]])
    # of the two batches one gives −log 2 (logits of no distribution), the other log 2 and more
    answers = iter([plain, plain + 5, plain, torch.tensor([[2.0, 0.0]])])
    monkeypatch.setattr(sensitivity, "last_logits", lambda model, batch_inputs: next(answers))
    monkeypatch.setattr(torch.Tensor, "log_softmax", lambda self, dim: self - math.log(2))
    result = sensitivity.fisher(
        build_model(), inputs, torch.nn.Identity(), unit(), epsilon=1.0, batch=1, one_sided=True
    )
    assert result == 0
    answers = iter([plain, plain - 5, plain, plain + 5])
    monkeypatch.setattr(sensitivity, "last_logits", lambda model, batch_inputs: next(answers))
    result = sensitivity.fisher(
        build_model(), inputs, torch.nn.Identity(), unit(), epsilon=1.0, batch=1, one_sided=True
    )
    assert result == pytest.approx(2.5)  # (5 + 0)/2, not (5 − 5)/2


def losses(model, inputs, layer, moves):
    """−log p of every token behind whole passes whose last state moves, by a hook of this test's own."""
    passes = []
    for move in moves:

        def hook(_, args, output, move=move):
            states = output[0] if isinstance(output, tuple) else output
            new = torch.cat([states[:, :-1], states[:, -1:] + move], 1)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        handle = block_of(model, layer).register_forward_hook(hook)
        with torch.no_grad():
            passes.append(-model(**inputs).logits[0, -1].log_softmax(-1))
        handle.remove()
    return passes


def test_hessian_is_the_curvature_until_the_likeliest_token_changes():
    model = build_model()
    _, single_prompts = prompts()
    inputs, block, flipped = single_prompts[0], block_of(model, 1), 0
    for seed in range(8):
        b = unit(seed)
        exact = asc.sensitivity(model, inputs, 1, b[None], relative_step=1e-4).curvature.item()
        small = ruscio2026.hessian(model, inputs, block, b, epsilon=1e-4)
        assert small == pytest.approx(exact, rel=1e-3, abs=1e-5)
        plus, unmoved, minus = losses(model, inputs, 1, [3 * b, 0 * b, -3 * b])
        y = unmoved.argmin()
        fixed = float(plus[y] - 2 * unmoved[y] + minus[y]) / 9
        result = ruscio2026.hessian(model, inputs, block, b)
        assert result == pytest.approx(
            float(plus.min() - 2 * unmoved.min() + minus.min()) / 9, rel=1e-6, abs=1e-9
        )
        if plus.argmin() != y or minus.argmin() != y:
            flipped += 1
            assert result < fixed
        else:
            assert result == pytest.approx(fixed, rel=1e-6, abs=1e-9)
    assert flipped


def test_jacobian_moves_what_enters_the_block():
    model, b = build_model("llama"), unit()
    _, single_prompts = prompts()
    result = ruscio2026.jacobian(model, single_prompts[0], block_of(model, 1), b)
    entering = []
    handle = block_of(model, 1).register_forward_hook(lambda m, a, out: entering.append(out[0, -1]))
    losses(model, single_prompts[0], 0, [0 * b, 0.5 * b])  # what enters block 1 is what leaves block 0
    handle.remove()
    assert result == pytest.approx(float((entering[1] - entering[0]).norm()) / 0.5, rel=1e-6)
    # the exact one takes the same direction as what it is: the output of block 0
    exact = asc.sensitivity(model, single_prompts[0], 0, b[None]).amplification.item()
    near = ruscio2026.jacobian(model, single_prompts[0], block_of(model, 1), b, epsilon=1e-3)
    assert near == pytest.approx(exact, rel=1e-2)


def test_gradients_by_hand():
    model, b = build_model("llama"), unit()
    inputs, single_prompts = prompts((12, 7))
    tokens = [5, 6, 7]
    move = torch.zeros(96, dtype=torch.float64, requires_grad=True)

    def hook(_, args, output):
        return torch.cat([output[:, :-1], output[:, -1:] + move], 1)

    gradients = {"sum": [], "own": []}
    for prompt in single_prompts:
        handle = block_of(model, 1).register_forward_hook(hook)
        logits = model(**prompt).logits[0, -1]
        handle.remove()
        for name, value in (
            ("sum", logits[tokens].sum()),
            ("own", -logits.log_softmax(-1)[logits.argmax()]),
        ):
            (gradient,) = torch.autograd.grad(value, move, retain_graph=True)
            gradients[name].append(float(gradient @ b / gradient.norm()))
    block = block_of(model, 1)
    for prompt, value in zip(single_prompts, gradients["sum"], strict=True):
        assert ruscio2026.grad_blockage(model, prompt, block, b, tokens) == pytest.approx(value, rel=1e-6)
    # the last column of the shorter row is of a padding token; the true last token is its own
    blockage = ruscio2026.grad_blockage(model, inputs, block, b, tokens)
    assert blockage != pytest.approx(np.mean(gradients["sum"]), rel=1e-3)
    assert ruscio2026.grad_alignment(model, inputs, block, b) == pytest.approx(
        np.mean(gradients["own"]), rel=1e-5
    )
    assert all(p.grad is None for p in model.parameters())


def test_the_gradient_of_the_prompts_own_loss_is_0_in_its_last_column():
    model, b = build_model("llama"), unit()
    inputs, _ = prompts((12, 7))
    for layer in (0, 2):
        result = ruscio2026.grad_alignment(model, inputs, block_of(model, layer), b, language_model_loss=True)
        assert result == 0


def test_tokens_of_uncertainty_are_last_pieces():
    tokenizer = letters()
    tokens = ruscio2026.uncertain_tokens(tokenizer)
    assert tokenizer.convert_ids_to_tokens(tokens) == ["I", "t", "e", "e", "s", "n"]


def test_the_boundary_reads_out_as_nothing_whatever_it_is():
    draw = torch.Generator().manual_seed(0)
    head = torch.randn(151_936, 8, generator=draw) * 0.02
    for seed in range(3):
        result = ruscio2026.boundary_readout(head, unit(seed, 8))
        assert result.entropy == pytest.approx(math.log(len(head)), abs=1e-3)
    # summed in bfloat16 it is above the largest entropy there is
    assert ruscio2026.boundary_readout(head.bfloat16(), unit(0, 8)).entropy == 11.9375 > math.log(len(head))


def test_vocab_alignment_is_a_norm_and_chance_is_its_root():
    draw = torch.Generator().manual_seed(0)
    head = torch.randn(500, 64, generator=draw) @ torch.diag(torch.linspace(3, 0.1, 64))
    b = unit(1, 64)
    turned = np.linalg.svd(head.numpy())[2]
    assert ruscio2026.vocab_alignment(head, b, k=20) == pytest.approx(
        np.linalg.norm(turned[:20] @ b.numpy()), rel=1e-4
    )
    alignments = [ruscio2026.vocab_alignment(head, unit(seed, 64), k=20) for seed in range(60)]
    assert np.mean(alignments) == pytest.approx(math.sqrt(20 / 64), abs=0.03)


def test_the_lens_has_no_norm():
    model = build_model("llama")
    _, single_prompts = prompts()
    with torch.no_grad():
        out = model(**single_prompts[0], output_hidden_states=True)
    head = model.lm_head.weight
    middle = out.hidden_states[2][0, -1]
    torch.testing.assert_close(ruscio2026.lens(head, middle), head @ middle)
    read = asc.readout(model)(middle)
    assert (ruscio2026.lens(head, middle) - read).abs().max() > 0.01
    # behind the last block hidden_states are behind the final norm: there it is the model's output
    torch.testing.assert_close(ruscio2026.lens(head, out.hidden_states[-1][0, -1]), out.logits[0, -1])


def test_attention_rows_and_neurons():
    attention = torch.rand(2, 3, 4, 4, dtype=torch.float64).softmax(-1)
    row = attention.mean(1)[:, -1].numpy()
    np.testing.assert_allclose(ruscio2026.attn_entropy(attention), -(row * np.log(row)).sum(-1), rtol=1e-8)
    np.testing.assert_allclose(ruscio2026.attn_sink(attention), row[:, 0])
    first_neurons, two = torch.randn(5, 3), torch.randn(7, 3)
    expected = (two.mean(0) - first_neurons.mean(0)) / (two.std(0) + first_neurons.std(0))
    torch.testing.assert_close(
        ruscio2026.neuron_score(first_neurons, two).float(), expected, rtol=1e-4, atol=1e-5
    )
    assert ruscio2026.neuron_score(torch.zeros(3, 1), torch.ones(3, 1)).item() == pytest.approx(1e6)


def generated(model, ids):
    return model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()


def test_steering_moves_every_step():
    model = build_model("llama", torch.float32)
    ids = prompts((9,))[1][0]["input_ids"]
    block, v = block_of(model, 1), 20 * unit().float()
    with ruscio2026.steering(block, v):
        answers = generated(model, ids)
    with asc.edit(model, asc.edits.AddDirection(1, 2 * v, steps="all")):
        assert answers == generated(model, ids)
    with asc.edit(model, asc.edits.AddDirection(1, 2 * v)):
        first = generated(model, ids)
    assert first[0] == answers[0]
    assert first != answers
    assert generated(model, ids) != answers


def test_compression_changes_all_positions():
    model = build_model("llama")
    inputs = prompts((9,))[1][0]
    basis = torch.linalg.qr(
        torch.randn(96, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )[0]
    leaving = []
    with ruscio2026.compression(block_of(model, 1), unit(), basis):
        handle = block_of(model, 2).register_forward_pre_hook(lambda m, args: leaving.append(args[0][0]))
        with torch.no_grad():
            model(**inputs)
        handle.remove()
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True).hidden_states[2][0]
    rest = plain - unit()
    expected = 0.8 * plain + 0.2 * (unit() + rest @ basis @ basis.T)
    torch.testing.assert_close(leaving[0], expected)
    assert ((leaving[0] - plain).norm(dim=-1) > 0.01 * plain.norm(dim=-1)).all()


def test_a_constant_detector_refuses_as_much_as_any():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 50, generator=draw)
    for chances in (torch.full((200,), 0.5), torch.rand(200, generator=draw).clamp_min(0.4)):
        assert (ruscio2026.bypass(logits, chances, 7).argmax(-1) == 7).all()
    assert torch.equal(ruscio2026.bypass(logits, torch.zeros(200), 7), logits)


def test_answers_are_judged_anywhere_and_lose_what_repeats_the_prompt():
    prompt = "Q: Who?\nA:"
    assert ruscio2026.answer_of(f"{prompt} Me. {prompt} You.", prompt) == "Me.  You."
    assert ruscio2026.answer_of(f"{prompt} {prompt}", prompt) == ""
    assert ruscio2026.refused("Paris. I am UNSURE of it", ["unsure"])
    assert not ruscio2026.refused("Paris.", ["unsure"])
    assert ruscio2026.loops("x y a b c d e z a b c d e")
    assert not ruscio2026.loops("one two three four five six seven eight nine ten eleven")
    rows = ruscio2026.first_rows(1000, 0)
    assert len(set(rows.tolist())) == 200


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, b, i: ruscio2026.fisher(m, {"input_ids": i["input_ids"]}, b, unit()), "an attention_mask"),
        (
            lambda m, b, i: ruscio2026.fisher(m, i, b, unit()[None]),
            r"direction must be \[D\].*shape \(1, 96\)",
        ),
        (lambda m, b, i: ruscio2026.hessian(m, i, b, unit() * math.nan), "of finite numbers"),
        (lambda m, b, i: ruscio2026.jacobian(m, i, b, unit(), epsilon=0), "epsilon must be above 0, got 0"),
        (lambda m, b, i: ruscio2026.fisher(m, i, b, unit(), batch=0), "batch must be at least 1, got 0"),
        (lambda m, b, i: ruscio2026.grad_blockage(m, i, b, unit(), []), "must name at least one"),
        (lambda m, b, i: ruscio2026.vocab_alignment(torch.eye(3), torch.ones(3), k=4), r"1\.\.3, got 4"),
        (
            lambda m, b, i: ruscio2026.boundary_readout(torch.eye(3), torch.ones(2)),
            r"\[V, 2\], got shape \(3, 3\)",
        ),
        (lambda m, b, i: ruscio2026.bypass(torch.ones(2, 3), torch.ones(3), 1), r"\[2\], got shape \(3,\)"),
        (
            lambda m, b, i: ruscio2026.compression(b, unit(), torch.eye(3)).__enter__(),
            r"\[96, k\], got shape",
        ),
        (
            lambda m, b, i: ruscio2026.compression(b, unit(), torch.eye(96), share=2).__enter__(),
            r"in \[0, 1\], got 2",
        ),
    ],
)
def test_bad_arguments(call, message):
    model = build_model("llama")
    with pytest.raises(ValueError, match=message):
        call(model, block_of(model, 0), prompts((5,))[1][0])


def test_a_model_in_training_mode_is_evaluated():
    """Dropout changed the numbers from call to call."""
    b = unit()
    inputs, _ = prompts()

    def measured(model):
        arguments = (model, inputs, block_of(model, 1), b)
        return [
            ruscio2026.fisher(*arguments),
            ruscio2026.hessian(*arguments),
            ruscio2026.jacobian(*arguments),
            ruscio2026.grad_blockage(*arguments, [3, 4]),
            ruscio2026.grad_alignment(*arguments),
        ]

    model = models.tiny("gpt2", implementation="eager", resid_pdrop=0.5).to(torch.float64)
    expected = measured(model)
    assert measured(model.train()) == pytest.approx(expected, rel=1e-9)
    assert model.training
