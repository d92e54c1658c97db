# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, and chat templates, as a folder says."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _abi
from ._library import I32, Handle, argument_error, c_path, c_text, check, lib, number, taken

Message = Dict[str, Any]


def token_ids(ids: Any, field: str = "ids") -> List[int]:
    """Token ids of the caller: a list, a tuple, an array of integers."""
    if isinstance(ids, (str, bytes, dict)) or not hasattr(ids, "__iter__"):
        raise argument_error(f"{field} is {ids!r:.40}; expected token ids", field)
    return [number(i, field, *I32) for i in ids]


def ids_array(ids: List[int]) -> Any:
    return (ctypes.c_int32 * max(1, len(ids)))(*ids)


def as_json(value: Any, field: str) -> Optional[bytes]:
    """What goes to a chat template."""
    try:
        return None if value is None else json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise argument_error(f"{field} cannot be written as JSON: {e}", field) from None


def checked_messages(messages: Any) -> None:
    """Throws Error for what is no conversation."""
    if not isinstance(messages, (list, tuple)) or not all(isinstance(m, dict) for m in messages) or not messages:
        raise argument_error(f"messages are {messages!r:.80}; expected a list of dictionaries with role and content", "messages")
    for m in messages:
        if not isinstance(m.get("role"), str):
            raise argument_error(f"a message has the role {m.get('role')!r:.40}; expected a text", "messages")


class Tokenizer(Handle):
    """The tokenizer of a folder (tokenizer.json or tiktoken.model)."""

    def __init__(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        self._own(lib.moebius_tokenizer_open(c_path(folder, "folder")), lib.moebius_tokenizer_free)

    @classmethod
    def _of_model(cls, model: int) -> "Tokenizer":
        self = cls.__new__(cls)
        self._own(lib.moebius_model_tokenizer(model), lib.moebius_tokenizer_free)
        return self

    def encode(self, text: str, *, add_special: bool = True) -> List[int]:
        """Token ids; add_special adds what the folder's post-processor adds, a BOS token usually."""
        if not isinstance(text, str):
            raise argument_error(f"text is a {type(text).__name__}; expected a text", "text")
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 16
        while True:
            ids, count = (ctypes.c_int32 * room)(), ctypes.c_size_t()
            check(lib.moebius_tokenizer_encode(self._pointer, raw, len(raw), int(add_special), ids, room, ctypes.byref(count)))
            if count.value <= room:
                return list(ids[:count.value])
            room = count.value

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of tokens."""
        size, held = ctypes.c_size_t(), token_ids(ids)
        return taken(lib.moebius_tokenizer_decode(self._pointer, ids_array(held), len(held), int(skip_special), ctypes.byref(size)), size)

    def apply_chat_template(self, messages: Sequence[Message], *, tools: Optional[Sequence[Any]] = None,
                            documents: Optional[Sequence[Any]] = None, add_generation_prompt: bool = False,
                            template_args: Optional[Dict[str, Any]] = None, tokenize: bool = True) -> Union[str, List[int]]:
        """What the folder's template makes of messages: token ids, or with tokenize=False the text.

        add_generation_prompt=True begins an answer behind the messages; without it there is none, as in transformers.
        """
        checked_messages(messages)
        chat = _abi.moebius_chat(ctypes.sizeof(_abi.moebius_chat), as_json(messages, "messages"),
                                 as_json(tools, "tools"), as_json(documents, "documents"), as_json(template_args, "template_args"),
                                 int(add_generation_prompt))
        if not tokenize:
            size = ctypes.c_size_t()
            return taken(lib.moebius_tokenizer_template(self._pointer, ctypes.byref(chat), ctypes.byref(size)), size)
        room, count = 4096, ctypes.c_size_t()
        while True:
            ids = (ctypes.c_int32 * room)()
            check(lib.moebius_tokenizer_chat(self._pointer, ctypes.byref(chat), ids, room, ctypes.byref(count)))
            if count.value <= room:
                return list(ids[:count.value])
            room = count.value

    def chat_answer(self, messages: Sequence[Message], answer: Sequence[int], *, tools: Optional[Sequence[Any]] = None,
                    documents: Optional[Sequence[Any]] = None, add_generation_prompt: bool = True,
                    template_args: Optional[Dict[str, Any]] = None, ended: bool = True) -> Dict[str, Any]:
        """The tokens of an answer to messages as the next message: content, reasoning_content, and tool_calls where there are tools."""
        checked_messages(messages)
        chat = _abi.moebius_chat(ctypes.sizeof(_abi.moebius_chat), as_json(messages, "messages"),
                                 as_json(tools, "tools"), as_json(documents, "documents"), as_json(template_args, "template_args"),
                                 int(add_generation_prompt))
        given, size = token_ids(answer, "answer"), ctypes.c_size_t()
        message: Dict[str, Any] = json.loads(taken(lib.moebius_tokenizer_answer(
            self._pointer, ctypes.byref(chat), ids_array(given), len(given), int(ended), ctypes.byref(size)), size))
        return message

    @property
    def has_template(self) -> bool:
        """Whether the folder has a chat template."""
        return bool(lib.moebius_tokenizer_has_template(self._pointer))

    @property
    def vocab_size(self) -> int:
        """One past the highest id that has a token."""
        return int(lib.moebius_tokenizer_vocab(self._pointer))

    def token_to_id(self, token: str) -> Optional[int]:
        """The id of a token as the vocabulary writes it, or None."""
        if isinstance(token, str) and "\0" in token:
            return None
        found = int(lib.moebius_tokenizer_id(self._pointer, c_text(token, "token")))
        return None if found < 0 else found

    def id_to_token(self, id: int) -> Optional[str]:
        """A token as the vocabulary writes it, or None."""
        size, handle = ctypes.c_size_t(), self._pointer
        if not I32[0] <= number(id, "id", -(2**63)) <= I32[1]:
            return None
        pointer = lib.moebius_tokenizer_token(handle, id, ctypes.byref(size))
        return None if not pointer else taken(pointer, size)

    def is_special(self, id: int) -> bool:
        """Whether the token is a special one."""
        return bool(lib.moebius_tokenizer_is_special(self._pointer, number(id, "id", *I32)))
