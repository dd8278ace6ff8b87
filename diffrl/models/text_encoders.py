"""How much of a prompt a family's text encoders read: each cuts it at its own limit, and says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any


def plain_length(tokenizer: Any, text: str) -> int:
    """Return the number of tokens of a text, special ones included."""
    return len(tokenizer(text, truncation=False, verbose=False)["input_ids"])


def chat_length(tokenizer: Any, text: str, **options: Any) -> int:
    """Return the number of tokens of a text in the chat template of its tokenizer."""
    messages = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return plain_length(tokenizer, chat)


@dataclass(frozen=True)
class TextEncoder:
    """One of the text encoders of a family.

    Args:
        part: of the pipeline, which counts its tokens.
        name: what people call it.
        length: tokens of a text that count to its limit, as the stock pipeline has it, from the part and the text.
        limit: tokens that it reads; None: `max_sequence_length`; "own": what its tokenizer says.
        per_character: tokens that a character of ASCII may make.
    """

    part: str
    name: str
    length: Callable[[Any, str], int] = plain_length
    limit: int | str | None = None
    per_character: int = 1


CLIP = TextEncoder("tokenizer", "CLIP", limit="own")


class TextReader:
    """What reads prompts up to a limit: a text encoder, or a reward.

    Args:
        name: for messages.
        limit: tokens that it reads.
        length: tokens of a text.
        per_character: tokens that a character of ASCII may make; most texts need not be tokenised.
    """

    def __init__(self, name: str, limit: int, length: Callable[[str], int], per_character: int = 1):
        self.name, self.limit, self._length, self._per_character = name, limit, length, per_character
        self._frame = length("")

    @property
    def reads_words(self) -> bool:
        """Whether there is a place beside the end token: a placeholder that feeds zeros has none."""
        return self.limit > 1

    def cuts(self, text: str) -> bool:
        """Return whether it does not read a text to its end."""
        if text.isascii() and self._frame + 2 + self._per_character * len(text) <= self.limit:
            return False
        return self._length(text) > self.limit


def text_readers(
    encoders: tuple[TextEncoder, ...], parts: Mapping[str, Any], max_sequence_length: int
) -> list[TextReader]:
    """Return the text encoders that a pipeline has, as readers.

    Args:
        encoders: of its family.
        parts: tokenizers and processors of the pipeline by name; None where it has none.
        max_sequence_length: of the adapter.
    """
    made = []
    for one in encoders:
        part = parts.get(one.part)
        if part is None:
            continue
        limit = part.model_max_length if one.limit == "own" else one.limit or max_sequence_length
        made.append(
            TextReader(f"{one.name} ({limit} tokens)", int(limit), partial(one.length, part), one.per_character)
        )
    return [reader for reader in made if reader.reads_words]


def tokenizers_of(encoders: tuple[TextEncoder, ...], folder: Path) -> dict[str, Any]:
    """Return tokenizers and processors of a pipeline's folder; what is not there, or cannot be read, is left out.

    Loading the pipeline says what is wrong with them.
    """
    from transformers import AutoProcessor, AutoTokenizer

    tokenizers: dict[str, Any] = {}
    for part in {one.part for one in encoders}:
        kind = AutoProcessor if part == "processor" else AutoTokenizer
        if (folder / part).is_dir():
            try:
                tokenizers[part] = kind.from_pretrained(str(folder / part), local_files_only=True)
            except (OSError, ValueError, ImportError, KeyError):
                continue
    return tokenizers
