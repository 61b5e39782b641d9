"""The training text is generation prompt + answer + <turn|> newline, for every known Gemma 4 template."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from finetune.chat import END_OF_TURN, check_image_template, check_template, render
from finetune.errors import ModelError
from finetune.tasks.base import Example, Message

EXAMPLE = Example(
    row=1,
    prompt=(Message("system", "Answer in SQL."), Message("user", "How many?")),
    answer="  SELECT count(*) FROM t \n",
)
SHIPPED = sorted((Path(trl.__file__).parent / "chat_templates").glob("gemma4*.jinja"))
THOUGHT = "<|channel>thought\n<channel|>"
# The form of the 31B and 26B templates: an empty thought channel in the generation prompt alone.
WITH_THOUGHT_CHANNEL = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
    "{{ '<|image|>' if part.type == 'image' else part.text | trim }}{% endfor %}{% endif %}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n"
    "{% if not enable_thinking | default(false) %}" + THOUGHT + "{% endif %}{% endif %}"
)
TEMPLATES = {path.stem: path.read_text() for path in SHIPPED} | {"thought channel": WITH_THOUGHT_CHANNEL}


def tokenizer_with(template: str) -> Any:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer


def test_the_installed_templates_are_found() -> None:
    assert len(SHIPPED) >= 5


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_and_completion(name: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[name])
    check_template(tokenizer)
    rendered = render(tokenizer, EXAMPLE)
    thought = THOUGHT if name == "thought channel" else ""
    assert rendered.prompt == (
        "<bos><|turn>system\nAnswer in SQL.<turn|>\n<|turn>user\nHow many?<turn|>\n<|turn>model\n" + thought
    )
    assert rendered.completion == "SELECT count(*) FROM t" + END_OF_TURN


@pytest.mark.parametrize("name", TEMPLATES)
def test_images_stand_in_front_of_the_text_of_the_last_turn(name: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[name])
    check_image_template(tokenizer)
    pictures: tuple[Any, ...] = (object(), object())
    thought = THOUGHT if name == "thought channel" else ""
    asked = replace(EXAMPLE, prompt=(Message("user", " Which is it? "),), images=pictures)
    prompt = render(tokenizer, asked).prompt.replace("\n\n", "")  # one of them has an empty line around images
    assert prompt == "<bos><|turn>user\n<|image|><|image|>Which is it?<turn|>\n<|turn>model\n" + thought


@pytest.mark.parametrize("content", ["{{ m.content | trim }}", "{{ m.content[1].text }}<|image|>"])
def test_templates_that_do_not_take_images_are_refused_for_a_task_with_images(content: str) -> None:
    template = "{{ bos_token }}{% for m in messages %}<|turn>" + content + "<turn|>\n{% endfor %}"
    with pytest.raises(ModelError, match="in front of the text for an image"):
        check_image_template(tokenizer_with(template))


def test_embedded_template(tokenizer: Any) -> None:
    check_template(tokenizer)
    assert render(tokenizer, EXAMPLE).prompt.endswith("<|turn>model\n")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "no chat template"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}", "ends a finished answer with"),
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content }}<turn|>\n{% endfor %}"
            "{% if add_generation_prompt %}model:{% endif %}",
            "does not continue",
        ),
    ],
)
def test_other_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_template(tokenizer_with(template))
