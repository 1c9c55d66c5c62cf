"""The embedded engine: transformers on a CPU behind the HTTP protocol of SGLang's native server.

    python -m infra.engines.embedded --model-path DIR --port 30000

A client that drives SGLang drives this without a change. Where SGLang dies or serves a mix of weights (a truncated,
partial or wrong-shape checkpoint) this refuses with 400 and keeps serving what it had.

    cli ── server ── app ── routes_generate, routes_control ── wire
                      └──── scheduler ── batch, sampling, decoding
                               └──────── live_model ── checkpoint
"""
