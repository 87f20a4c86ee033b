# SPDX-License-Identifier: MIT
"""Effects of positions in a model: states and reads of its first token, and its scores by offset.

The first token sees itself alone, so its states through all layers are a function of that token. With a BOS
token they are the same for all texts; without one they are the same for all texts that begin alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope import _checks
from attnscope._warn import warn
from attnscope.arguments.modules import module_argument
from attnscope.capture import module_tracing
from attnscope.capture.forward import Forward, forward
from attnscope.errors import MissingError, UndefinedWarning
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.positions.position_profile import PositionProfile

if TYPE_CHECKING:
    from attnscope.capture.layer import Layer

#: Texts of one forward pass.
BATCH = 16


@shown_by_shape
class Trajectory(NamedTuple):
    """The states of position 0, each [L + 1] float64: what enters block 0, then what leaves each block.

    norm: mean over texts. cosine: with the next state, NaN for the last one. gap: largest over texts of
    ‖h(text) − h(first token alone)‖/‖h(text)‖. across: largest distance between two texts, as a share of the
    mean norm; 0 where all texts begin with one token.
    """

    norm: Tensor
    cosine: Tensor
    gap: Tensor
    across: Tensor


@shown_by_shape
class Fingerprint(NamedTuple):
    """The writes of each head of position 0, float64.

    write: u = W_O^h v_0, [B, h, D]. share: mean over queries 1 … of ‖A_i0 u‖/‖z_i‖, z_i the head's whole
    write. projection: mean of <A_i0 u, z_i>/‖z_i‖². value_ratio: ‖v_0‖ over the mean of the other ‖v_j‖. All
    but the first [B, h], and NaN for texts of one token.
    """

    write: Tensor
    share: Tensor
    projection: Tensor
    value_ratio: Tensor


def first_token_trajectory(model: nn.Module, inputs: Mapping[str, Any]) -> Trajectory:
    """Compute the states of position 0 through all layers, and those of the first token read alone.

    Args:
        model: a causal transformers model in evaluation mode.
        inputs: input_ids [B, n], and attention_mask [B, n] where texts are padded, on either side.

    Returns:
        Trajectory. gap is rounding for every causal model: below 1e-5 in float32, 1e-12 in float64.

    Raises:
        NotImplementedError: an encoder, an encoder-decoder, or a model whose blocks are not found,
            or in which a token is several states at once (Gemma 3n).
        ValueError: inputs without token ids, a text without a token.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> ids = torch.tensor([[1, 5, 6, 7], [1, 9, 3, 2]])
        >>> found = asc.first_token_trajectory(model, {"input_ids": ids})
        >>> found, bool((found.gap < 1e-5).all()), float(found.across.max())
        (Trajectory(norm=float64[3], cosine=float64[3], gap=float64[3], across=float64[3]), True, 0.0)

    References:
        Ruscio, Nanni, Silvestri, arXiv 2606.06160, 2026.
    """
    return trajectory_and_states(model, inputs)[0]


def trajectory_and_states(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Trajectory, list[Tensor]]:
    """Return the result of `first_token_trajectory`, and all states that it was taken from, L + 1 of [B, n,
    D].
    """
    name = "first_token_trajectory"
    ids, mask = _tokens(name, inputs)
    require_causal(name, model, ids)
    rows, first = torch.arange(len(ids), device=ids.device), mask.int().argmax(-1)
    states = _states(
        name, model, _forward_arguments(model, {**inputs, "input_ids": ids, "attention_mask": mask.long()})
    )
    first_only = {"input_ids": ids[rows, first][:, None], "attention_mask": mask.new_ones(len(ids), 1).long()}
    single = [state[:, 0].double() for state in _states(name, model, first_only)]
    path = torch.stack([state[rows, first].double() for state in states])
    norm = path.norm(dim=-1)
    cosine = torch.full(norm.shape[:1], torch.nan, dtype=torch.float64, device=norm.device)
    cosine[:-1] = torch.cosine_similarity(path[:-1], path[1:], dim=-1).mean(-1)
    apart = (path[:, :, None] - path[:, None]).norm(dim=-1).flatten(1).amax(-1)
    gap = ((path - torch.stack(single)).norm(dim=-1) / norm).nan_to_num(0.0).amax(-1)
    mean = norm.mean(-1)
    across = (apart / mean).nan_to_num(0.0)
    return Trajectory(mean.cpu(), cosine.cpu(), gap.cpu(), across.cpu()), states


def fingerprint(layer: Layer, projection: Tensor) -> Fingerprint:
    """Compute what each head of a captured layer writes of position 0, and its share of the head's whole
    write.

    Args:
        layer: with the sites attention, value and head_output.
        projection: W_O by head, [D, h, d]: `output_projection`; biases are no part of it.

    Returns:
        Fingerprint. Query 0 is left out, since it reads itself alone, and so are queries to which key 0 is
        out of sight.

    Raises:
        TypeError: anything but a captured layer or a projection of numbers.
        ValueError: a projection of another shape.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> with asc.capture(model, sites=("attention", "value", "head_output")) as recording:
        ...     layer = next(iter(recording.run(input_ids=torch.arange(5)[None])))
        >>> found = asc.fingerprint(layer, asc.output_projection(model, 0))
        >>> found.write.shape, found.share.shape
        (torch.Size([1, 2, 16]), torch.Size([1, 2]))

    References:
        Ruscio, Nanni, Silvestri, arXiv 2606.06160, 2026.
    """
    from attnscope.capture.layer import Layer

    if not isinstance(layer, Layer):
        raise TypeError(
            "fingerprint: layer must be one of capture(model, sites=('attention', 'value', 'head_output')), "
            f"got {type(layer).__name__}"
        )
    projection = _checks.float_tensor("fingerprint", "projection", projection)
    attention = layer.matrices().double()
    values = layer.states("value", per_head=True).double()
    outputs = layer.states("head_output").double()
    heads, width = values.shape[1], values.shape[3]
    if projection.ndim != 3 or projection.shape[1:] != (heads, width):
        raise ValueError(
            f"fingerprint: projection must have shape [D, {heads}, {width}], got {tuple(projection.shape)}"
        )
    matrix = projection.to(values.device).double()
    write = torch.einsum("Dhd,bhd->bhD", matrix, values[:, :, 0])
    written = torch.einsum("Dhd,bhnd->bhnD", matrix, outputs)
    read, sizes = attention[..., 0], written.norm(dim=-1)
    lengths = layer.lengths.to(values.device)
    later = torch.arange(read.shape[-1], device=values.device)[None, None] < lengths[:, None, None]
    later = later & (torch.arange(read.shape[-1], device=values.device) > 0)
    if isinstance(seen := layer.visibility.support, Tensor):
        later = later & seen[..., 0].to(values.device)

    def mean(values_: Tensor) -> Tensor:
        later_values = torch.where(later, values_, torch.nan)
        return later_values.nanmean(-1).cpu()

    share = read * write.norm(dim=-1)[..., None] / sizes
    along = read * torch.einsum("bhD,bhnD->bhn", write, written) / sizes.square()
    norms = values.norm(dim=-1)
    return Fingerprint(write.cpu(), mean(share), mean(along), norms[..., 0].cpu() / mean(norms))


def output_projection(model: nn.Module, layer: int) -> Tensor:
    """Return W_O of one layer by head, [D, h, d]: the dimensions that each head writes its output with.

    Args:
        model: of transformers.
        layer: number of the block.

    Returns:
        The matrix by head, without its bias; stored transposed or fused matrices are put right.

    Raises:
        MissingError: the layer has no output projection.
        WeightMapError: the model's structure is not known.

    Example:
        >>> import attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> asc.output_projection(LlamaForCausalLM(config), 0).shape
        torch.Size([16, 2, 8])
    """
    from attnscope.models.architecture import weight_map

    entries = weight_map(model)
    try:
        entry = entries[layer, "o"]
    except KeyError:
        raise MissingError(
            f"output_projection: layer {layer!r} of {type(model).__name__} has none; its {entries.layers} "
            "layers are numbered from 0"
        ) from None
    stored = dict(model.named_parameters(remove_duplicate=False))[entry.tensor]
    matrix = entry.of(stored.detach())
    return matrix.reshape(matrix.shape[0], entries.heads_of(entry.layer), -1)


def position_profile(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    n: int = 64,
    groups: int = 16,
    layers: Sequence[int] | None = None,
) -> PositionProfile:
    """Compute the sums of `PositionProfile` over texts; inside `asc.edit(model, ...)`, those of the edited
    model.

    Texts should be windows that begin anywhere: where all begin at their beginning, content depends on
    position. Text r of N belongs to group r·groups // N.

    Args:
        model: a causal transformers model in evaluation mode whose softmax can be captured.
        inputs: input_ids [N, n or more], and attention_mask of the same shape where texts are padded on the
            right; of each text the first n tokens are read.
        n: tokens of a text; shorter ones are left out and counted in a warning.
        groups: of texts.
        layers: numbers of the layers; None takes all.

    Returns:
        PositionProfile, for `residual_size` and `removed`.

    Raises:
        ValueError: no texts of n tokens, another shape.
        NotImplementedError: a model that sees later tokens, or whose softmax cannot be captured.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> ids = torch.randint(16, (16, 8), generator=torch.Generator().manual_seed(0))
        >>> profile = asc.position_profile(model, {"input_ids": ids}, n=8, groups=4)
        >>> profile.layers, profile.texts, asc.residual_size(profile).estimate.shape
        ([0, 1], 16, (2, 2))

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026.
    """
    name = "position_profile"
    profile = PositionProfile(n, groups=groups)
    ids = _texts(name, inputs, n)
    require_causal(name, model, ids)
    sites = Forward(("scores",), layers=layers)
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        group = [rank * groups // len(ids) for rank in range(start, start + len(batch))]
        try:
            with forward(model, {"input_ids": batch, "attention_mask": torch.ones_like(batch)}, sites) as run:
                for layer in run:
                    profile.add(layer.scores, group, layer=layer.index, sink_logit=layer.sink_logits)
        except RuntimeError as error:
            if start or isinstance(error, NotImplementedError):
                raise
            raise NotImplementedError(f"{name}: {error}") from None
    return profile


def require_causal(function: str, model: nn.Module, ids: Tensor) -> None:
    """Raise for models whose first token sees later ones."""
    model = module_argument(function, model)
    name = type(model).__name__
    if module_tracing.takes(model, "decoder_input_ids"):
        raise NotImplementedError(f"{function}: {name} has an encoder; a causal map is needed")
    pair = torch.stack([ids[:1, 0], ids[:1, -1]], dim=1)
    try:
        with forward(model, {"input_ids": pair}, Forward(sites=("attention",))) as layers:
            for layer in layers:
                if bool(layer.attention[..., 0, 1:].any()):
                    raise NotImplementedError(
                        f"{function}: {name} attends to later tokens; a causal map is needed"
                    )
                break
    except RuntimeError as error:
        if isinstance(error, NotImplementedError):
            raise
        raise NotImplementedError(f"{function}: {error}") from None


def _tokens(function: str, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    ids = inputs.get("input_ids")
    if not torch.is_tensor(ids) or ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"{function}: inputs must hold input_ids [B, n], got {sorted(inputs)}")
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if not bool(mask.any(-1).all()):
        raise ValueError(f"{function}: a text without a token, row {int((~mask.any(-1)).int().argmax())}")
    return ids, mask


def _forward_arguments(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with position ids counted from the first real token, where that is not column 0."""
    mask = inputs["attention_mask"]
    if bool(mask[:, 0].all()) or "position_ids" in inputs or not module_tracing.takes(model, "position_ids"):
        return inputs
    return {**inputs, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def _states(function: str, model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return the states that enter block 0 and that leave each block, [B, n, D] each."""
    states: list[Tensor] = []
    with forward(model, inputs, Forward(sites=("hidden", "block_output"))) as layers:
        for layer in layers:
            states += [layer.hidden] if not states else []
            states.append(layer.block_output)
            if states[0].ndim != 3:
                raise NotImplementedError(
                    f"{type(model).__name__}: a token enters the first block as several states, {function} "
                    f"needs one; got shape {tuple(states[0].shape)}"
                )
    return states


def _texts(function: str, inputs: Mapping[str, Any], n: int) -> Tensor:
    """Return the first n tokens of every text that has as many."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not torch.is_tensor(ids) or ids.ndim != 2:
        raise ValueError(f"{function}: inputs must hold input_ids [N, n], got {sorted(inputs)}")
    enough = torch.full((len(ids),), ids.shape[1] >= n, device="cpu")
    if mask is not None and ids.shape[1] >= n:
        enough = mask[:, :n].bool().all(-1).cpu()
    if not bool(enough.any()):
        raise ValueError(f"{function}: none of {len(ids)} texts has {n} tokens, the longest {ids.shape[1]}")
    if short := int((~enough).sum()):
        message = f"{function}: {short} of {len(ids)} texts have fewer than {n} tokens and are left out"
        warn(UndefinedWarning(message, function, short))
    return ids[enough.to(ids.device)][:, :n]
