# SPDX-License-Identifier: MIT
"""A model with attention of its own, as its code lies next to weights on the hub."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

#: Whether the attention modules give their maps away.
RETURNS = True


class RemoteConfig(PretrainedConfig):
    model_type = "remote_model"

    def __init__(self, vocab_size=32, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, **options):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_attention_heads, self.num_hidden_layers = num_attention_heads, num_hidden_layers
        super().__init__(**options)


class RemoteAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        width = config.hidden_size
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in "qkv")

    def forward(self, states, output_attentions=False):
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projections)
        if not RETURNS and not output_attentions:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return mixed.transpose(1, 2).flatten(2), None
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        weights = scores.softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights if RETURNS else None


class RemoteModel(PreTrainedModel):
    config_class = RemoteConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([RemoteAttention(config) for _ in range(config.num_hidden_layers)])
        self.post_init()

    def forward(self, input_ids, attention_mask=None, output_attentions=False):
        states, maps = self.embeddings(input_ids), []
        for layer in self.layers:
            change, weights = layer(states, output_attentions)
            states = states + change
            maps.append(weights)
        attentions = tuple(maps) if output_attentions and RETURNS else None
        return BaseModelOutput(last_hidden_state=states, attentions=attentions)
