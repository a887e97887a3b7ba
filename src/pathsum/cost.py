"""What training costs, by counting: operations, memory traffic, memory, from the settings alone."""

from dataclasses import dataclass

from pathsum.loss import CHUNK
from pathsum.model import Config
from pathsum.presets import TrainConfig
from pathsum.standard import StandardConfig

NEWTON_SCHULZ = 5  # iterations of Muon's orthogonalisation


@dataclass(frozen=True)
class Machine:
    """The two limits of a processor."""

    name: str
    flops: float  # operations a second of its matrix products
    bandwidth: float  # bytes a second from its memory

    @property
    def balance(self) -> float:
        """Operations for each byte from memory below which the memory is the limit."""
        return self.flops / self.bandwidth


# Dense bf16 rate and memory bandwidth as the vendor's data sheets state them (SXM versions).
A100 = Machine("A100 80 GB", 312e12, 2.04e12)
H100 = Machine("H100", 989e12, 3.35e12)


def attention_parameters(config: Config) -> int:
    """Weights in W_Q, W_K, W_V and W_O of all layers. ValueError for a config with MLPs."""
    if isinstance(config, StandardConfig):
        raise ValueError(
            "costs are counted for attention-only models, got one with MLPs: pass a Config without"
        )
    return config.n_layers * 4 * config.d_model * config.n_heads * config.d_head


def embedding_parameters(config: Config) -> int:
    """Weights in W_E and W_U."""
    return 2 * config.d_vocab * config.d_model


def flops_per_token(config: Config) -> float:
    """Useful operations to train on one token: forward, and twice that backward.

    2 for each weight of a matrix product (W_E is only looked up), and 2 products of n_ctx rows per
    head for the patterns, masked half included, as is the custom since Chowdhery et al. 2022.
    """
    products = 2 * (attention_parameters(config) + config.d_vocab * config.d_model)
    patterns = 4 * config.n_layers * config.n_heads * config.d_head * config.n_ctx
    return 3.0 * (products + patterns)


def flops_of_muon(config: Config) -> float:
    """Operations of orthogonalising every attention matrix once, that is per step."""
    small, large = sorted((config.d_model, config.n_heads * config.d_head))
    one = 2 * (2 * small * small * large + small**3)
    return float(4 * config.n_layers * NEWTON_SCHULZ * one)


def flops_per_step(train: TrainConfig) -> float:
    """All operations of one step: the batch's tokens, and Muon."""
    return tokens_per_step(train) * flops_per_token(train.model) + flops_of_muon(train.model)


def tokens_per_step(train: TrainConfig) -> int:
    return train.batch * train.model.n_ctx


def utilisation(tokens_per_second: float, config: Config, flops: float) -> float:
    """Model-FLOP utilisation: useful operations a second over what the machine could do."""
    return tokens_per_second * flops_per_token(config) / flops


def stored_numbers(train: TrainConfig) -> int:
    """fp32 numbers that last: weights, gradients, one momentum (Muon) or two (AdamW) for each."""
    return 3 * attention_parameters(train.model) + 4 * embedding_parameters(train.model)


def kept_numbers(train: TrainConfig) -> int:
    """Numbers that the forward pass keeps for the backward one, over the batch.

    Per layer and token: what is read, with positions and without, queries, keys, values, mixed
    values, and a normaliser per head; at the end the final residual and its gradient.
    """
    c = train.model
    layer = 2 * c.d_model + 4 * c.n_heads * c.d_head + c.n_heads
    return tokens_per_step(train) * (c.n_layers * layer + 2 * c.d_model)


def logit_numbers(train: TrainConfig) -> int:
    """Numbers in the logits that exist at one time: CHUNK rows, not the whole batch's."""
    return min(CHUNK, tokens_per_step(train)) * train.model.d_vocab


def memory_bytes(train: TrainConfig, kept_bytes: int = 4) -> float:
    """Bytes that training needs, least; what libraries and allocators add is not in it."""
    lasting = 4 * (stored_numbers(train) + logit_numbers(train))
    return float(lasting + kept_bytes * kept_numbers(train))


def bytes_per_step(train: TrainConfig, kept_bytes: int = 4) -> float:
    """Bytes that a step must move to or from memory, least, if nothing but registers is reused.

    Weights are read forward and backward; gradients written and read; optimiser states and weights
    read and written. What the forward pass keeps is written and read once, and the logits twice.
    """
    weights = attention_parameters(train.model) + embedding_parameters(train.model)
    updates = 2 * weights + 2 * stored_numbers(train)
    logits = 4 * tokens_per_step(train) * train.model.d_vocab
    return float(4 * updates + 2 * kept_bytes * kept_numbers(train) + kept_bytes * logits)


def intensity(train: TrainConfig, kept_bytes: int = 4) -> float:
    """Operations for each byte that must be moved."""
    return flops_per_step(train) / bytes_per_step(train, kept_bytes)


def hours(train: TrainConfig, machine: Machine, share: float) -> float:
    """How long the run takes on a machine at a given utilisation, by calculation."""
    return train.steps * flops_per_step(train) / (share * machine.flops) / 3600
