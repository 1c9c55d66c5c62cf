"""What runs inside SGLang's own Python environment, by path and never by import: it needs SGLang there and nothing of ours."""

API_KEY_VARIABLE = "SGLANG_ENGINE_API_KEY"
