"""The served API against tools that know nothing of this project.

llm-comply asks a running server as OpenAI's clients do. Schemathesis makes requests up from the
server's own /openapi.json, inside its schemas and outside of them, and holds every answer against
it. `make conformance` runs both; the exit status tells whether all passed.

Schemathesis loads this file too, for the check at its end.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import schemathesis

from benchmarks.serving import Server, serving
from tensorfold.checkpoints.hub import home, resolve

_STREAMS = 8

# One is OpenAI's default, for which llm-comply's requests are made. Greedily the default model,
# whose template shows it no tools, repeats a required call until the reply limit.
_COMPLY_FLAGS = ("--temperature", "1")
_NOT_OURS = {
    "chat-image-input": "wants an image described, and no model that is served sees any",
    "chat-error-handling": "wants a request without a model refused, which is served here",
}

# The schemas allow replies as long as the window, and requests that are made up ask for them.
_FUZZ_FLAGS = ("--context", "512", "--max-tokens", "8")
_FUZZ_OPTIONS = (
    "--phases=coverage,fuzzing",
    # What no JSON Schema can say is told apart by `valid_requests_are_served` below.
    "--exclude-checks=positive_data_acceptance",
    "--continue-on-failure",
    "--request-timeout=300",
    "--generation-database=none",
    "--no-color",
)

_MOST_PROMPTS = 64

_BEYOND_A_SCHEMA = re.compile(
    "|".join(
        (
            # Beside each other, two numbers or names are wrong that by themselves are right.
            "^min_tokens must be at most the reply limit",
            "^This server's maximum context length is",
            "^tool_choice names .*, which is not in tools",
            "^tool_choice asks for a call, and tools is empty",
            "^tool_choice asks for a call, and a form of the content can't be combined",
            "prompts with .* choices each are more than the",
            # A pattern can't compare a key with the size of the vocabulary.
            "^logit_bias holds a token id outside the valid range",
            # The tokenizer may have no token for a character.
            "^prompt must come to at least one token$",
            # Texts and objects in languages of their own.
            "^(response_format|guided_json|guided_regex|guided_grammar|structured_outputs|tools): ",
            "^(guided_json|structured_outputs.json) must be a JSON schema$",
            "^the chat template refused the messages",
        )
    ),
    re.DOTALL,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both tools and tell whether all passed."""
    parser = argparse.ArgumentParser(prog="benchmarks.http_conformance", description=__doc__)
    parser.add_argument("model", nargs="?", help="as for tensorfold serve")
    parser.add_argument("--examples", type=int, default=50, metavar="N", help="of an operation")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args(arguments)
    model = resolve(options.model)
    with serving(model, home(), _STREAMS, _COMPLY_FLAGS) as server:
        complies = comply(server)
    with serving(model, home(), _STREAMS, _FUZZ_FLAGS) as server:
        conforms = fuzz(server, options.examples, options.seed)
    sys.exit(not (complies and conforms))


def comply(server: Server) -> bool:
    """Whether llm-comply's requests are all answered as it wants, those left out aside."""
    command = ("llm_comply.cli", "--format", "openai-chat")
    listed = _run(*command, "--list").stdout
    names = [name for name in re.findall(r"^  (chat-\S+)", listed, re.M) if name not in _NOT_OURS]
    told = _run(
        *command,
        *("--base-url", f"{server.address}/v1", "--api-key", "none"),
        *("--model", server.ask("GET", "/v1/models")["data"][0]["id"]),
        *("--filter", ",".join(names), "--json"),
    )
    report: dict[str, Any] = json.loads(told.stdout)
    for result in report["results"]:
        print(f"llm-comply: {result['id']} {result['status']}", *result.get("errors", ()))
    for name, reason in _NOT_OURS.items():
        print(f"llm-comply: {name} left out: {reason}")
    found = report["summary"]
    print("llm-comply:", *(f"{found[each]} {each}" for each in ("passed", "failed", "skipped")))
    return told.returncode == 0 and found["passed"] > 0


def fuzz(server: Server, examples: int, seed: int) -> bool:
    """Whether every answer to Schemathesis is one that the description promises."""
    location = f"{server.address}/openapi.json"
    limits = (f"--max-examples={examples}", f"--seed={seed}")
    told = _run("schemathesis.cli", "run", location, *_FUZZ_OPTIONS, *limits)
    print(told.stdout, told.stderr, sep="\n")
    return told.returncode == 0


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool in a folder where it may leave what it likes."""
    root = str(Path(__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": root,
        "SCHEMATHESIS_HOOKS": "benchmarks.http_conformance",
    }
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Not a thousand prompts at once, which the schema allows: they would take minutes."""
    prompt = case.body.get("prompt") if isinstance(case.body, dict) else None
    return not isinstance(prompt, list) or len(prompt) <= _MOST_PROMPTS


@schemathesis.check
def valid_requests_are_served(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """A request inside the schema is refused only for what no schema can say."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code == 400:
        message = response.json()["error"]["message"]
        assert _BEYOND_A_SCHEMA.search(message), f"refused, though the schema allows it: {message}"


if __name__ == "__main__":
    main()
