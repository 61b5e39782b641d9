"""Example -> the exact text a model sees. The only place where a prompt is rendered.

Training and evaluation both call `render`. What is trained on is always

    generation prompt + answer + END_OF_TURN

and never the template's rendering of the finished chat: the 31B and 26B templates open the
generation prompt with an empty thought channel that their finished turns do not have, so the two
disagree, and a model trained on one is asked with the other.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from finetune.errors import ModelError
from finetune.tasks.base import IMAGE_MARK, Example

END_OF_TURN_TOKEN = "<turn|>"
END_OF_TURN = END_OF_TURN_TOKEN + "\n"
IMAGE_TOKEN = "<|image|>"
"""Where an image stands in rendered text. The processor puts the image's own number of tokens in its place."""


class ChatTemplate(Protocol):
    """What is used of a transformers tokenizer or processor."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Rendered:
    """`prompt` ends where the model starts to write. `completion` is what it should write, to the end of its turn."""

    prompt: str
    completion: str


def render(template: ChatTemplate, example: Example) -> Rendered:
    """Render one example with the model's own chat template, thinking off. Text in, text out."""
    return _render(template, _messages(example), example.answer)


def render_turns(template: ChatTemplate, example: Example) -> list[Rendered]:
    """Render each turn of the assistant, the example's answer last: what stands before it, and what it should say.

    The turns before it are rendered as finished ones, as a model will see them that is asked at that point.
    """
    messages = _messages(example)
    earlier = [place for place, message in enumerate(example.prompt) if message.role == "assistant"]
    said = [_render(template, messages[:place], example.prompt[place].content) for place in earlier]
    return [*said, render(template, example)]


def _render(template: ChatTemplate, messages: list[dict[str, Any]], answer: str) -> Rendered:
    prompt = template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return Rendered(str(prompt), answer.strip() + END_OF_TURN)


def _messages(example: Example) -> list[dict[str, Any]]:
    """The prompt as the template takes it, with one placeholder for each image."""
    messages: list[dict[str, Any]] = [asdict(message) for message in example.prompt]
    if not example.images:
        return messages
    if not any(IMAGE_MARK in message.content for message in example.prompt):
        messages[-1]["content"] = IMAGE_MARK * len(example.images) + messages[-1]["content"]
    for message in messages:
        if IMAGE_MARK in message["content"]:
            message["content"] = list(_parts(message["content"]))
    return messages


def _parts(content: str) -> Iterator[dict[str, str]]:
    """A message's text in parts: an image where a mark stands."""
    for place, text in enumerate(content.split(IMAGE_MARK)):
        if place:
            yield {"type": "image"}
        if text:
            yield {"type": "text", "text": text}


def check_template(template: ChatTemplate) -> None:
    """Raise ModelError unless the chat template writes Gemma 4 turns.

    The finished turn must be the opening of the generation prompt, less an empty thought channel,
    then the answer and END_OF_TURN: else the model would be trained to stop on something else.
    """
    if not template.chat_template:
        raise ModelError("the tokenizer has no chat template", "use an instruction-tuned Gemma 4 (-it), or add one")
    question = [{"role": "user", "content": "probe-question"}]
    answered = [*question, {"role": "assistant", "content": "probe-answer"}]
    asked = str(template.apply_chat_template(question, tokenize=False, add_generation_prompt=True))
    finished = str(template.apply_chat_template(answered, tokenize=False))
    if not finished.endswith("probe-answer" + END_OF_TURN):
        raise ModelError(
            f"the chat template ends a finished answer with {finished[-24:]!r}, not with {END_OF_TURN!r}",
            "use the chat template that came with Gemma 4",
        )
    opening = finished.removesuffix("probe-answer" + END_OF_TURN)
    if not asked.startswith(opening):
        raise ModelError(
            "the chat template's generation prompt does not continue the chat it answers",
            "use the chat template that came with Gemma 4",
        )


def check_image_template(template: ChatTemplate) -> None:
    """Raise ModelError unless the chat template puts an image in front of the text that comes after it."""
    parts = [{"type": "image"}, {"type": "text", "text": "probe-question"}]
    asked = str(template.apply_chat_template([{"role": "user", "content": parts}], tokenize=False))
    before, _, after = asked.partition(IMAGE_TOKEN)
    if "probe-question" in before or "probe-question" not in after or IMAGE_TOKEN in after:
        raise ModelError(
            f"the chat template does not write {IMAGE_TOKEN} in front of the text for an image",
            "use the chat template that came with Gemma 4, or choose a task without images",
        )
