"""SGLang's native HTTP protocol as far as Pinpoint's client speaks it, from an engine that can lie: its faults are fields.

Source: the wire facts of SGLang 0.5.23. It "holds" the raw bytes of the checkpoint that it loaded and "generates" what
`answers` says.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from tests.fakes.wire import Answer, Drop, Hang, WireServer

PUBLIC = ("/health",)


class FakeEngine(WireServer):
    """Honest unless told otherwise. `n-th` counts from 1."""

    def __init__(self, api_key: str = "") -> None:
        super().__init__()
        self.api_key = api_key
        self.answers: Callable[[str], str] = lambda prompt: "7"
        self.finish = "stop"
        self.logprob: Callable[[int], float | None] = self._likely  # of an input token
        self.latency_s = 0.0
        self.model_path, self.version = "/start", "default"
        self.tensors: dict[str, str] = {}
        self.contents: dict[str, bytes] = {}  # what the digests are of
        self.generated = 0
        # Lies about an update that all answer success:
        self.label_only = False  # the version moves, the weights do not
        self.no_op_reload = False  # neither moves
        self.stale_label = False  # the weights move, the version does not
        self.loads_only: int | None = None  # only the first so many tensors move
        self.extra_tensor = False  # one tensor of another model stays
        # Lies about responses:
        self.foreign_at: int | None = None  # the n-th response is of another version
        self.mixed_at: int | None = None  # the n-th response spans two versions
        self.unlabelled = False  # responses name no version
        self.scored_by = ""  # another version than it serves, when it is asked for log-probabilities
        self.scores_others = False  # log-probabilities are of other tokens than were asked
        # How it says things, and how it fails; paths are those of the protocol:
        self.says_algorithm = True  # SGLang does not, and has checksums of its own
        self.packed: set[str] = set()  # tensors laid out in a way that only the engine knows
        self.ranks = 1
        self.drops: set[str] = set()
        self.hangs: set[str] = set()
        self.unavailable: set[str] = set()
        self.garbles: set[str] = set()  # answers 200 with text that is not the protocol's
        self.drops_after: int | None = None  # dies for good after so many responses
        self.context: int | None = None  # refuses a prompt of more characters

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if path in self.drops or (self.drops_after is not None and self.generated >= self.drops_after):
            raise Drop
        if path in self.hangs:
            raise Hang
        if path in self.unavailable:
            return Answer({"error": {"message": "starting"}}, 503)
        if path in self.garbles:
            return Answer("OK")
        if self.api_key and path not in PUBLIC and self.headers[-1].get("Authorization") != f"Bearer {self.api_key}":
            return Answer({"error": "Unauthorized"}, 401)
        match path:
            case "/health":
                return Answer()
            case "/model_info":
                return Answer({"model_path": self.model_path, "weight_version": self.version})
            case "/server_info":
                return Answer({"version": "fake"})
            case "/update_weights_from_disk":
                return self._update(body)
            case "/continue_generation":
                return Answer({"message": "Generation continued successfully.", "status": "ok"})
            case "/weights_checker":
                return self._checksums()
            case "/generate":
                length = len(body["text"] if "text" in body else body["input_ids"])
                if self.context is not None and length > self.context:
                    return Answer(
                        {"error": {"message": f"Input length ({length} tokens) exceeds the maximum allowed length"}}, 400
                    )
                return Answer(self._generate(body))
        return Answer({"detail": "Not Found"}, 404)

    def _update(self, body: dict[str, Any]) -> Answer:
        folder = Path(body["model_path"])
        if not folder.is_dir():
            return Answer({"success": False, "message": f"{folder} is not a folder", "num_paused_requests": 0}, 400)
        done = Answer({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})
        if self.no_op_reload:
            return done
        if not self.stale_label:
            self.version = body.get("weight_version") or self.version
        self.model_path = str(folder)
        if not self.label_only:
            contents = tensors_of(folder)
            new = {name: xxhash.xxh3_128_hexdigest(data) for name, data in contents.items()}
            self.contents |= {new[name]: data for name, data in contents.items()}
            kept = dict(self.tensors) if self.extra_tensor else {}
            moved = list(new)[: self.loads_only]
            self.tensors = {**kept, **{n: new[n] if n in moved else self.tensors.get(n, "uninitialised") for n in new}}
        return done

    def _checksums(self) -> Answer:
        held = self.tensors if self.says_algorithm else {name: self._own(name) for name in self.tensors}
        whole = xxhash.xxh3_128_hexdigest(json.dumps(sorted(held.items())).encode())
        body = {"success": True, "message": "", "ranks": [{"checksums": held}] * self.ranks, "per_engine_checksum": whole}
        return Answer({**body, "algorithm": "xxh3_128"} if self.says_algorithm else body)

    def _own(self, name: str) -> str:
        """SGLang's, on a CPU: the first 8 bytes of SHA-256 over what it holds."""
        held = self.contents.get(self.tensors[name], self.tensors[name].encode())
        return hashlib.sha256(b"packed" + held if name in self.packed else held).hexdigest()[:16]

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.latency_s)
        generates = body.get("sampling_params", {}).get("max_new_tokens") != 0
        with self.lock:
            self.generated += generates
            nth = self.generated if generates else 0
        spans = [{"version": self.version if generates else self.scored_by or self.version, "start": 0, "end": 2}]
        if nth == self.foreign_at:
            spans = [{"version": "someone/1/0/else", "start": 0, "end": 2}]
        if nth == self.mixed_at:
            spans = [{"version": "someone/1/0/else", "start": 0, "end": 1}, {"version": self.version, "start": 1, "end": 2}]
        text, reason = self._stopped(self.answers(body.get("text", "")) if generates else "", body.get("sampling_params", {}))
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": 3,
            "completion_tokens": 2,
        }
        if not self.unlabelled:
            meta |= {"weight_version": spans[-1]["version"], "weight_versions": spans}
        if body.get("return_logprob"):
            meta |= self._scores(body)
        return {"text": text, "output_ids": [1, 2], "meta_info": meta}

    def _stopped(self, text: str, sampling: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """What comes before the first stop text, and why it ended."""
        places = {text.find(stop): stop for stop in sampling.get("stop") or () if stop in text}
        if not places:
            return text, {"type": self.finish}
        return text[: min(places)], {"type": "stop", "matched": places[min(places)]}

    def _likely(self, token: int) -> float:
        """Depends on every bit of what it holds, and on the token."""
        return -xxhash.xxh32_intdigest(f"{token} {sorted(self.tensors.items())}".encode()) / 2**30

    def _scores(self, body: dict[str, Any]) -> dict[str, Any]:
        """Of input tokens; each is the likeliest at its place."""
        first, *scored = body["input_ids"][body["logprob_start_len"] :]
        tokens = [token + self.scores_others for token in scored]
        entries = [[self.logprob(token), token, None] for token in tokens]
        return {"input_token_logprobs": [[None, first, None], *entries], "input_top_logprobs": [None, *([e] for e in entries)]}


def digests(folder: Path) -> dict[str, str]:
    return {name: xxhash.xxh3_128_hexdigest(data) for name, data in tensors_of(folder).items()}


def tensors_of(folder: Path) -> dict[str, bytes]:
    """The raw bytes of every tensor, read independently of Pinpoint's own reader."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = data[begin:end]
    return found
