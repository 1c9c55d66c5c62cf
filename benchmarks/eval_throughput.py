"""What the whole path of a dataset costs, beside a bare load generator, httpx and lm-eval's own client, in the same run.

    python -m benchmarks.eval_throughput [--requests 4000] [--rounds 5] [--memory 100000] [--server NAME ...] [--json]

Three servers. `echo`, in a process of its own, answers at once, so that the client is what is measured. `tiny` is a real
embedded engine whose model, of 64 hidden units, is so small that client and engine share the processor about evenly. `smollm2`
is one that serves SmolLM2-135M-Instruct, the smallest language model that people use.

`ours` is `infra.running.stream_samples` as a flow runs it: version checked, graded in other processes, logged in a store.
`bare` is aiohttp with answers parsed, no more. All have the same prompts and, at first, the same number of requests at once.
Rates are requests a second, from the first request to the last answer, which for `ours` is its grade, medians of the rounds;
starting clients and graders is not counted. The goals: ours_vs_bare at least 0.8 and ours_vs_lm_eval at least 1 on an engine.
`--memory N` streams N samples through and says how the process grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import httpx
import orjson

from infra.engines.client import EngineClient
from infra.model import DatasetSpec, EngineRef, FleetLease, PinnedFleet, Problem, Sampling
from infra.running import REQUESTS_PER_ENGINE, stream_samples
from infra.running.progress import Progress
from infra.running.sample_log import SampleLog
from infra.running.spool import Spool
from infra.store import Store
from tests.engines.launching import embedded_engine
from tests.infra.examples import SNAPSHOT, TOKEN, proof
from tests.services.smollm2 import save_smollm2
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

AT_ONCE = REQUESTS_PER_ENGINE
TEXT = "12+34=46 " * 20
Contestant = Callable[[str, int, int], Awaitable[float]]  # base URL, requests, tokens; gives the seconds of asking


class Echo(asyncio.Protocol):
    """Answers as an engine does, at once; as little HTTP as the clients need."""

    body = orjson.dumps(
        {
            "text": TEXT,
            "meta_info": {"finish_reason": {"type": "stop"}, "weight_version": TOKEN, "completion_tokens": 60},
            "loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}],
        }
    )
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.held = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (end := self.held.find(b"\r\n\r\n")) >= 0:
            head = self.held[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.held) < end + 4 + length:
                return
            self.held = self.held[end + 4 + length :]
            self.transport.write(self.answer)


def serve_echo(port: Any) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    import uvloop

    uvloop.run(serve())


@contextmanager
def echo_server() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    process = context.Process(target=serve_echo, args=(port,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port.get(timeout=60)}"
    finally:
        process.kill()
        process.join()


def prompts(count: int) -> list[str]:
    return [f"{n % 90 + 10}+{n % 80 + 10}=" for n in range(count)]


async def workers(requests: list[str], ask: Callable[[str], Awaitable[None]]) -> float:
    left, started = iter(requests), time.perf_counter()

    async def work() -> None:
        for prompt in left:
            await ask(prompt)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return time.perf_counter() - started


def body_of(prompt: str, tokens: int) -> bytes:
    return orjson.dumps({"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}})


async def bare(url: str, count: int, tokens: int) -> float:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def ask(prompt: str) -> None:
            async with session.post(f"{url}/generate", data=body_of(prompt, tokens)) as response:
                orjson.loads(await response.read())

        return await workers(prompts(count), ask)


async def with_httpx(url: str, count: int, tokens: int) -> float:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(limits=limits, timeout=300, headers={"Content-Type": "application/json"}) as client:

        async def ask(prompt: str) -> None:
            orjson.loads((await client.post(f"{url}/generate", content=body_of(prompt, tokens))).content)

        return await workers(prompts(count), ask)


async def with_lm_eval(url: str, count: int, tokens: int) -> float:
    from lm_eval.api.instance import Instance
    from lm_eval.models.sglang_generate_API import SGLANGGENERATEAPI

    model = SGLANGGENERATEAPI(
        base_url=f"{url}/generate", model="m", num_concurrent=AT_ONCE, tokenizer_backend=None, tokenized_requests=False
    )
    options = {"max_gen_toks": tokens, "until": [], "temperature": 0}
    requests = [Instance("generate_until", {}, (prompt, dict(options)), number) for number, prompt in enumerate(prompts(count))]
    started = time.perf_counter()
    await asyncio.to_thread(model.generate_until, requests, disable_tqdm=True)
    return time.perf_counter() - started


def pinned_to(url: str) -> PinnedFleet:
    ref = EngineRef(name="a", base_url=url, pid=1, checkpoint_path="/x", configuration="benchmark")
    lease = FleetLease(fleet="eval", epoch=1, holder="benchmark", ttl_s=60, engines=(ref,), api_key="")
    return PinnedFleet(lease=lease, snapshot=SNAPSHOT, proofs=(proof("a"),))


async def ours(url: str, count: int, tokens: int) -> float:
    pinned = pinned_to(url)
    spec = DatasetSpec(name="sums", source="/sums.jsonl", sampling=Sampling(max_new_tokens=tokens))
    problems = [Problem(id=str(n), prompt=text, answer="46", entry={}) for n, text in enumerate(prompts(count))]
    with tempfile.TemporaryDirectory() as folder, Spool(problems, 1) as spool:
        log = SampleLog.of(Store(Path(folder).as_uri()), pinned, "suite", spec, problems)
        progress = Progress()
        await stream_samples(pinned, spec, problems, str, spool, log=log, progress=progress)
        if len(spool) != count:
            raise SystemExit(f"{len(spool)} samples of {count}")
        return count / progress.per_second


SERVERS = ("echo", "tiny", "smollm2")
CONTESTANTS: dict[str, Contestant] = {"bare": bare, "ours": ours, "lm_eval": with_lm_eval, "httpx": with_httpx}


def measure(url: str, count: int, tokens: int, rounds: int, names: list[str]) -> dict[str, float]:
    """Requests a second of each, one after the other in each round."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):  # the first, which is short, warms up
        for name in names:
            few = min(count, AT_ONCE if count < 1000 else 200) if turn == 0 else count // 8 if name == "httpx" else count
            seconds = asyncio.run(CONTESTANTS[name](url, few, tokens))  # type: ignore[arg-type]
            if turn:
                rates[name].append(few / seconds)
    return {name: round(statistics.median(found), 1) for name, found in rates.items()}


def ratios(rates: dict[str, float]) -> dict[str, float]:
    others = {f"ours_vs_{name}": round(rates["ours"] / rate, 2) for name, rate in rates.items() if name != "ours"}
    return {**rates, **others, **({"bare_vs_httpx": round(rates["bare"] / rates["httpx"], 1)} if "httpx" in rates else {})}


def save_tiny(folder: Path) -> None:
    build_model(3, hidden=64, layers=2).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def on_engine(save: Callable[[Path], object], count: int, tokens: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        with embedded_engine(Path(folder)) as engine:

            async def label() -> None:
                async with EngineClient(engine.base_url, engine.api_key or "") as client:
                    await client.update_weights(folder, TOKEN, 60)

            asyncio.run(label())
            return measure(engine.base_url, count, tokens, rounds, ["bare", "ours", "lm_eval"])


def memory(url: str, count: int) -> dict[str, float]:
    """How much the process grew, in MiB, for a tenth of the samples and for all; problems themselves are counted in."""
    found = {}
    for few in (count // 10, count):
        asyncio.run(ours(url, few, 60))
        found[f"peak_mib_{few}"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--server", action="append", choices=SERVERS, help="this one alone; may be given again")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    wanted, count, rounds = arguments.server or SERVERS, arguments.requests, arguments.rounds
    if "echo" in wanted:
        with echo_server() as url:
            if arguments.memory:
                found["memory"] = memory(url, arguments.memory)
            found["echo"] = ratios(measure(url, count, 60, rounds, list(CONTESTANTS)))
    if "tiny" in wanted:
        found["tiny"] = ratios(on_engine(save_tiny, max(AT_ONCE, count // 4), 32, rounds))
    if "smollm2" in wanted:
        found["smollm2"] = ratios(on_engine(save_smollm2, max(AT_ONCE, count // 20), 32, rounds))
    if arguments.json:
        print(json.dumps(found))
        return
    for server, figures in found.items():
        print(server)
        for name, figure in figures.items():
            print(f"  {name:20} {figure}")


if __name__ == "__main__":
    main()
