"""Train the demo model from scratch: `python -m orcastream.demo.train`.

All data is generated here or comes from questions.json; nothing is downloaded.
"""

import argparse
import itertools
import logging
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel
from transformers import Qwen3ForCausalLM

from orcastream.demo import MODEL_DIR
from orcastream.demo.network import MAX_POSITIONS, new_network, save_network
from orcastream.demo.rows import NAME, groups_of
from orcastream.demo.sequences import Sequence, SequenceBuilder
from orcastream.demo.tokenizer import save_tokenizer, train_tokenizer

MIXED_TOKENS = 1536
"""Tokens of the mixed sequences in one step; long counts are additional."""
CUTS = 20
"""Number of long counts reduced to a window, in the steps that have any."""
END_WEIGHT = 1.5
"""Weight of an end mark relative to other tokens: a count must learn where to stop."""
IGNORED = -100
AVERAGED_SHARE = 0.12
"""Final part of the run whose weights are averaged into the result."""
AVERAGE_EVERY = 10
"""Steps between two sets of weights in the average."""

log = logging.getLogger("orcastream.demo.train")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="folder of the finished model")
    parser.add_argument("--steps", type=int, default=4600, help="optimizer steps")
    parser.add_argument("--minutes", type=float, default=38.0, help="stop after this time, even with steps left")
    parser.add_argument("--start", type=Path, default=None, help="start from the weights in this folder")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and data")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train(options.out, options.steps, options.minutes, options.rate, options.seed, options.start)


def train(folder: Path, steps: int, minutes: float, rate: float, seed: int, start: Path | None = None) -> None:
    """Train for `steps` or `minutes`, whichever ends first, and write the model to `folder`.

    Training starts with fresh weights, or with those in the folder `start`.

    The learning rate follows the limit that is closer to its end, so that it is always low at the end. The result is
    the mean of the weights of the last steps (stochastic weight averaging, Izmailov et al. 2018).
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    save_tokenizer(tokenizer, folder, MAX_POSITIONS)
    network = new_network(tokenizer)
    if start is not None:
        network.load_state_dict(Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    log.info("%d parameters", sum(weight.numel() for weight in network.parameters()))
    network.set_attn_implementation(NAME)
    optimizers = _optimizers(network)
    average = AveragedModel(network)
    batches = _batches(SequenceBuilder(tokenizer, seed), seed)
    begun, tokens = time.monotonic(), 0
    for step in itertools.count():
        seconds = time.monotonic() - begun
        share = max(step / steps, seconds / (60 * minutes))
        if share >= 1:
            break
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * _schedule(step, share)
        sequences = next(batches)
        tokens += sum(len(sequence.tokens) for sequence in sequences)
        loss = _backward(network, sequences)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 25 == 0:
            log.info("step %d, %.0f s, %.2f M tokens, loss %.4f", step, seconds, tokens / 1e6, loss)
        if share > 1 - AVERAGED_SHARE and step % AVERAGE_EVERY == 0:
            average.update_parameters(network)
        elif step % 500 == 499:
            save_network(network, tokenizer, folder)
    save_network(average.module if average.n_averaged else network, tokenizer, folder)
    log.info("%.2f M tokens in %.1f minutes", tokens / 1e6, (time.monotonic() - begun) / 60)


def _schedule(step: int, share: float) -> float:
    warm_up = min(1.0, (step + 1) / 50)
    return warm_up * (0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * share)))


def _optimizers(network: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for embeddings and norms."""
    inner = [weight for weight in network.model.layers.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in inner}
    outer = [weight for weight in network.parameters() if id(weight) not in chosen]
    muon = torch.optim.Muon(inner, lr=1.0, momentum=0.95, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(outer, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def _batches(builder: SequenceBuilder, seed: int) -> Iterator[list[Sequence]]:
    rng = random.Random(seed)
    mixed = builder.mixed()
    while True:
        batch: list[Sequence] = []
        while sum(len(sequence.tokens) for sequence in batch) < MIXED_TOKENS:
            batch.append(next(mixed))
        draw = rng.random()
        if draw < 0.25:
            batch.append(builder.long())
        elif draw < 0.9:
            batch += [builder.cut() for _ in range(CUTS)]
        yield batch


def _backward(network: Qwen3ForCausalLM, sequences: list[Sequence]) -> float:
    """Compute the gradient of the weighted mean loss per learned token.

    A token's weight is one over the square root of its answer's length. With equal weights, the hundreds of easy
    tokens of a count would drown out a sum or a name of one token.
    """
    end_id = network.config.eos_token_id
    groups = [[sequences[index] for index in indices] for indices in groups_of([len(one.tokens) for one in sequences])]
    columns = zip(*(_pad(rows, end_id) for rows in groups), strict=True)
    tokens, positions, labels, weights = (torch.cat([part.flatten() for part in column]) for column in columns)
    hidden = network.model(
        input_ids=tokens.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        shapes=[(len(rows), len(rows[-1].tokens)) for rows in groups],
    ).last_hidden_state[0]
    taught = labels != IGNORED
    losses = torch.nn.functional.cross_entropy(network.lm_head(hidden[taught]), labels[taught], reduction="none")
    loss = (losses * weights[taught]).sum() / sum(math.sqrt(sum(sequence.learned)) for sequence in sequences)
    torch.autograd.backward(loss)
    return loss.item()


def _pad(rows: list[Sequence], end_id: int) -> tuple[torch.Tensor, ...]:
    """Return tokens, positions, target tokens and their weights, each `[rows, longest]`."""
    shape = len(rows), len(rows[-1].tokens)
    tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels, weights = torch.full(shape, IGNORED), torch.zeros(shape)
    for index, row in enumerate(rows):
        size = len(row.tokens)
        tokens[index, :size] = torch.tensor(row.tokens)
        positions[index, :size] = torch.tensor(row.positions)
        labels[index, : size - 1] = torch.where(torch.tensor(row.learned), tokens[index, :size], IGNORED)[1:]
        weights[index] = 1 / math.sqrt(sum(row.learned))
    weights[labels == end_id] *= END_WEIGHT
    return tokens, positions, labels, weights


if __name__ == "__main__":
    main()
