"""Rebuild the embedded base model from nothing: `python -m finetune.embedded.build --out DIR [--minutes 30]`.

Tokenizer, model, then training on the questions of the "train" split, on the answers alone. Half are asked with the
very prompt that fine-tuning will use and answered as a pipeline, half are asked for and answered in Lisp (query.py).
The model never sees a line of SQL among its answers. The result depends on the seed and on how many steps the
machine does in the time.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from random import Random

import torch
from PIL import Image, ImageDraw
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import Gemma4ForConditionalGeneration, Gemma4Processor, PreTrainedTokenizerFast

from finetune.chat import Rendered, render
from finetune.embedded.sql_rows import Asked, questions
from finetune.embedded.tiny import BASE_TEXT, BASE_VISION_WIDTH, new_model, new_processor
from finetune.embedded.tokenizer import train_tokenizer
from finetune.tasks import text_to_sql
from finetune.tasks.base import Example, Message

SEED = 2026
LISP_SYSTEM = "You translate questions into Lisp."
SCHEMAS_PER_BATCH = 8
QUESTIONS_PER_SCHEMA = 4
PEAK_LEARNING_RATE = 3e-3
WARMUP_SHARE = 0.03
WEIGHT_DECAY = 0.05
PATCH_STD, POSITION_STD = 0.2, 0.3
"""Of the vision tower's first weights: what is in a patch counts for more than where it is."""
_IGNORED = -100  # label of a token that is not to be predicted
_PADDING = -1  # branch of a token that is not there


@dataclass(frozen=True)
class Batch:
    """Schemas, each with several questions that share its tokens. All tensors are [schemas, tokens].

    `branches` numbers the questions from 1, 0 is the shared beginning. `labels` are input ids, on answers only.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    branches: torch.Tensor

    def attention_masks(self, window: int) -> dict[str, torch.Tensor]:
        """Who attends to whom, [schemas, 1, tokens, tokens]: the shared beginning and one's own branch, backwards."""
        from_branch, to_branch = self.branches[:, :, None], self.branches[:, None, :]
        distance = self.position_ids[:, :, None] - self.position_ids[:, None, :]
        causal = torch.ones(distance.shape[1:], dtype=torch.bool).tril()
        full = causal & ((to_branch == 0) | (to_branch == from_branch))
        return {"full_attention": full[:, None], "sliding_attention": (full & (distance < window))[:, None]}


def build(out: Path, minutes: float) -> None:
    """Write the whole model folder to `out`, after `minutes` of training."""
    tokenizer = train_tokenizer(_tokenizer_texts())
    model = new_model(tokenizer, BASE_TEXT, BASE_VISION_WIDTH, SEED)
    _set_initial_scales(model)
    train(model, batches(tokenizer), seconds=minutes * 60)
    held_out = list(islice(chain.from_iterable(questions("test", SEED, per_schema=1)), 200))
    share = exact_match(model, tokenizer, held_out)
    print(f"exact match on {len(held_out)} held-out questions: {share:.1%}", flush=True)
    processor = new_processor(tokenizer)
    start_vision(model, processor)
    processor.save_pretrained(out)
    model.to(torch.bfloat16).save_pretrained(out)


def pipeline_example(asked: Asked) -> Example:
    """The text-to-SQL example, its prompt word for word, with the answer in the base model's own dialect."""
    row = {"sql_prompt": asked.question, "sql_context": asked.context, "sql": asked.query.to_sql()}
    example = text_to_sql.to_example(row, 0)
    assert isinstance(example, Example), "a generated row is always usable"
    return replace(example, answer=asked.query.to_pipeline())


def lisp_example(asked: Asked) -> Example:
    """The same question, asked and answered in the other dialect."""
    prompt = (Message("system", LISP_SYSTEM), *pipeline_example(asked).prompt[1:])
    return Example(0, prompt, asked.query.to_lisp())


def train(model: Gemma4ForConditionalGeneration, data: Iterator[Batch], seconds: float) -> None:
    """AdamW, warm-up, then a cosine that reaches zero when the time is up. Answers only."""
    text_model = model.model.language_model
    parameters = list(text_model.parameters())
    decayed = [parameter for parameter in parameters if parameter.dim() > 1]
    plain = [parameter for parameter in parameters if parameter.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=PEAK_LEARNING_RATE,
        betas=(0.9, 0.98),
    )
    started = last_print = time.monotonic()
    model.train()
    average = math.nan
    candidates = torch.zeros(model.config.text_config.vocab_size, dtype=torch.bool)
    for step, batch in enumerate(data):
        share = (time.monotonic() - started) / seconds
        if share >= 1:
            break
        rate = min(share / WARMUP_SHARE, 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * max(rate, 0.01)
        loss = _loss(model, batch, candidates)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average = loss.item() if math.isnan(average) else 0.98 * average + 0.02 * loss.item()
        if time.monotonic() - last_print > 15:
            last_print = time.monotonic()
            asked = (step + 1) * SCHEMAS_PER_BATCH * QUESTIONS_PER_SCHEMA
            print(f"{share:4.0%}  step {step}  questions {asked}  loss {average:.4f}", flush=True)


def batches(tokenizer: PreTrainedTokenizerFast) -> Iterator[Batch]:
    """Fresh questions without end, padded on the right."""
    dialects = (pipeline_example, lisp_example) * (SCHEMAS_PER_BATCH // 2)
    schemas = questions("train", SEED, per_schema=QUESTIONS_PER_SCHEMA)
    while True:
        trees = [
            _tree(tokenizer, [dialect(one) for one in asked])
            for dialect, asked in zip(dialects, islice(schemas, SCHEMAS_PER_BATCH), strict=True)
        ]
        fillers = (0, _IGNORED, 0, _PADDING)
        columns = [
            pad_sequence([tree[index] for tree in trees], batch_first=True, padding_value=filler)
            for index, filler in enumerate(fillers)
        ]
        yield Batch(*columns)


def _tree(tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> tuple[torch.Tensor, ...]:
    """The fields of one row of a Batch: what the prompts have in common once, then the rest of each, with its answer.

    The prompts are two thirds schema. Sharing it trains on twice as many answers in the time.
    """
    rows = [_tokens(tokenizer, render(tokenizer, example)) for example in examples]
    columns = zip(*(tokens for tokens, _ in rows), strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    input_ids, labels = list(rows[0][0][:shared]), [_IGNORED] * shared
    positions, branches = list(range(shared)), [0] * shared
    for branch, (tokens, prompt_length) in enumerate(rows, start=1):
        input_ids += tokens[shared:]
        labels += [_IGNORED] * (prompt_length - shared) + tokens[prompt_length:]
        positions += range(shared, len(tokens))
        branches += [branch] * (len(tokens) - shared)
    return tuple(map(torch.tensor, (input_ids, labels, positions, branches)))


@torch.no_grad()
def exact_match(
    model: Gemma4ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, asked: list[Asked], size: int = 50
) -> float:
    """Share of questions that the model answers in its dialect word for word."""
    model.eval()
    right = 0
    for start in range(0, len(asked), size):
        rendered = [render(tokenizer, pipeline_example(one)) for one in asked[start : start + size]]
        inputs = tokenizer(
            [one.prompt for one in rendered], add_special_tokens=False, padding=True, return_tensors="pt"
        )
        output = model.generate(**inputs, max_new_tokens=48)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        wanted = [one.query.to_pipeline() for one in asked[start : start + size]]
        right += sum(answer.strip() == want for answer, want in zip(answers, wanted, strict=True))
    return right / len(asked)


def _loss(model: Gemma4ForConditionalGeneration, batch: Batch, candidates: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the answers' tokens among `candidates`, a mask [vocabulary], to which those tokens are added.

    Logits are only made where there is a token to predict. Tokens that are never an answer's are no candidates:
    pushed down together step after step, they would end up as one and the same embedding, which no LoRA on the
    projections could tell apart again. They are the words of SQL.
    """
    text = model.config.text_config
    hidden = model.model.language_model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=batch.attention_masks(text.sliding_window),
    ).last_hidden_state[:, :-1]
    wanted = batch.labels[:, 1:]
    supervised = wanted != _IGNORED
    candidates[wanted[supervised]] = True
    cap = text.final_logit_softcapping
    logits = cap * torch.tanh(model.lm_head(hidden[supervised]) / cap)
    return cross_entropy(logits.masked_fill(~candidates, -math.inf), wanted[supervised])


def _set_initial_scales(model: Gemma4ForConditionalGeneration) -> None:
    """Start where Gemma 4's forward pass is at its best: unit embeddings, attention logits of variance one.

    It multiplies embeddings by sqrt(hidden_size), and does not divide attention logits by sqrt(head_dim).
    """
    text_model = model.model.language_model
    with torch.no_grad():
        text_model.embed_tokens.weight.normal_(std=text_model.config.hidden_size**-0.5)
        for layer in text_model.layers:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight.fill_(layer.self_attn.head_dim**-0.25)


@torch.no_grad()
def start_vision(model: Gemma4ForConditionalGeneration, processor: Gemma4Processor) -> None:
    """Give the vision tower random weights that an adapter can start from. Nothing is learned.

    transformers' own initial scales suit towers that are trained for long: here patches would differ by less than
    their positions, and all images would reach the text model as nearly the same tokens. The tower's output is
    standardised as in a trained Gemma 4: by mean and deviation over images.
    """
    tower, projection = model.model.vision_tower, model.model.embed_vision.embedding_projection
    torch.manual_seed(SEED)
    tower.patch_embedder.input_proj.weight.normal_(std=PATCH_STD)
    tower.patch_embedder.position_embedding_table.normal_(std=POSITION_STD)
    for layer in tower.encoder.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.fill_(layer.self_attn.head_dim**-0.25)
    projection.weight.normal_(std=projection.in_features**-0.5)
    tower.std_bias.zero_()
    tower.std_scale.fill_(1.0)
    images = [_shapes(Random(number)) for number in range(48)]
    inputs = processor.image_processor(images=images, return_tensors="pt")
    seen = tower(inputs["pixel_values"], inputs["image_position_ids"]).last_hidden_state
    tower.std_bias.copy_(seen.mean(0))
    tower.std_scale.copy_(1 / seen.std(0))


def _shapes(random: Random) -> Image.Image:
    """Six rectangles and ellipses in any colours: an image that shows nothing."""

    def colour() -> tuple[int, ...]:
        return tuple(random.randrange(256) for _ in range(3))

    side = 384
    image = Image.new("RGB", (side, side), colour())
    pen = ImageDraw.Draw(image)
    for number in range(6):
        x, y = random.randrange(side), random.randrange(side)
        width, height = random.randrange(20, 120), random.randrange(20, 120)
        draw = pen.ellipse if number % 2 else pen.rectangle
        draw((x - width, y - height, x + width, y + height), fill=colour())
    return image


def _tokens(tokenizer: PreTrainedTokenizerFast, rendered: Rendered) -> tuple[list[int], int]:
    """Token ids of prompt and completion, and how many are the prompt's."""
    prompt: list[int] = tokenizer(rendered.prompt, add_special_tokens=False)["input_ids"]
    completion: list[int] = tokenizer(rendered.completion, add_special_tokens=False)["input_ids"]
    return prompt + completion, len(prompt)


def _tokenizer_texts() -> Iterator[str]:
    """What the merges are learned from. The SQL is there for its words; the model itself is not trained on it."""
    yield from ("system\n", "user\n", "model\n", text_to_sql.SYSTEM, *[LISP_SYSTEM] * 50)
    for asked in chain.from_iterable(islice(questions("train", SEED, per_schema=1), 6000)):
        yield "user\n" + text_to_sql.user_prompt(asked.context, asked.question)
        yield "model\n" + asked.query.to_sql()
        yield "system\n" + asked.query.to_pipeline()
        yield "system\n" + asked.query.to_lisp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--minutes", type=float, default=30, help="time to train (default: 30)")
    arguments = parser.parse_args()
    build(arguments.out, arguments.minutes)


if __name__ == "__main__":
    main()
