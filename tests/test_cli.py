"""The command line, in this process and as a server of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import nemotron_h_next_token
import next_token
import openai
import pytest
from tiny import save_folder, tiny_checkpoint

from tensorfold import __version__, cli, console, options
from tensorfold.engine import verify as verify_module
from tensorfold.engine.stress import Outcome
from tensorfold.engine.verify import Comparison
from tensorfold.info import info_rows
from tensorfold.runtime import step

COMMANDS = ("serve", "pull", "convert", "chat", "verify", "bench", "info")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("models") / "tiny-llama", num_hidden_layers=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process keep no compiled programs for the tests that follow."""
    monkeypatch.setenv("TENSORFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")


def one_line(text: str) -> str:
    """Messages are wrapped to the width of the terminal."""
    return " ".join(text.split())


def test_help_imports_no_jax_and_names_every_command() -> None:
    code = (
        "import sys\n"
        "from tensorfold import cli\n"
        "try:\n    cli.main(['--help'])\n"
        "finally:\n    assert 'jax' not in sys.modules and 'quart' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert one_line(capsys.readouterr().out).startswith(f"usage: tensorfold {command}")


def test_chat_has_the_defaults_of_serve() -> None:
    serve, chat = (vars(cli._parser().parse_args([command])) for command in ("serve", "chat"))
    assert {name: chat[name] for name in serve if name != "run"} == {
        name: value for name, value in serve.items() if name != "run"
    }


def test_a_step_has_a_row_more_than_lanes_there_may_be() -> None:
    assert step.BUCKETS[-1] - 1 == options.MOST_LANES


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tensorfold {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["serve", "--parallel", "0"],
        ["serve", "--context", "x"],
        ["info", "a", "b"],
        ["convert", "a"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "usage: tensorfold" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("serve --context abc", "--context: must be a whole number of at least 2, not 'abc'"),
        ("serve --context 1", "--context: must be a whole number of at least 2, not '1'"),
        ("serve --max-tokens 0", "--max-tokens: must be a whole number of at least 1, not '0'"),
        ("serve --parallel 256", "--parallel: must be a whole number from 1 to 255, not '256'"),
        ("serve --decode-share abc", "--decode-share: must be a finite number of at least 0, not"),
        (
            "serve --request-timeout 0",
            "--request-timeout: must be a finite number above 0, not",
        ),
        ("serve --top-k x", "--top-k: must be a whole number, not 'x'"),
        ("serve --temperature nan", "--temperature: must be a finite number, not 'nan'"),
        ("serve --temperature inf", "--temperature: must be a finite number, not 'inf'"),
        ("serve --top-p nan", "--top-p: must be a finite number, not 'nan'"),
        ("serve --min-p 2", "--min-p: must be a number from 0 to 1, not '2'"),
        ("serve --port 65536", "--port: must be a whole number from 0 to 65535, not '65536'"),
        ("verify --stress 0", "--stress: must be a finite number above 0, not '0'"),
        ("verify --seed -5", "--seed: must be a whole number of at least 0, not '-5'"),
        ("bench --streams 1,x", "--streams: must be whole numbers of at least 1 with commas"),
    ],
)
def test_a_value_that_an_option_does_not_take(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments.split())
    assert end.value.code == 2
    assert f"error: argument {message}" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("command", ["serve", "pull", "verify", "info"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no/such/folder",
            "tensorfold: no/such/folder: no such folder or file, and not a name on the hub "
            "(ORG/REPO)",
        ),
        (
            "nobody/nothing",
            "tensorfold: nobody/nothing: not in the cache, and the hub can't be asked "
            "(HF_HUB_OFFLINE is set)",
        ),
    ],
)
def test_a_model_that_is_not_there(
    command: str,
    name: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert cli.main([command, name]) == 1
    assert one_line(capsys.readouterr().err) == message


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no model")
    assert cli.main(["info", str(path)]) == 1
    assert "neither a folder nor a .gguf file" in one_line(capsys.readouterr().err)


def test_info_on_the_default_model(default_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(default_gguf)]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:7])
    assert rows == {
        "name": "SmolLM2-135M-Instruct",
        "architecture": "LlamaForCausalLM",
        "layers": "30 attention",
        "parameters": "134,515,008",
        "tensors": "210 Q4_1, 61 F32, 1 Q8_0",
        "vocabulary": "49,152",
        "context": "8,192 tokens",
    }


def test_info_on_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:15].strip(): line[15:] for line in lines}
    assert rows["name"] == "tiny-llama"
    assert rows["layers"] == "1 attention"
    assert rows["context"] == "512 tokens"
    assert rows["state"] == f"{2 * 4 * 2 * 16} bytes a token, 0 a lane"
    assert rows["chat template"] == "yes"


@pytest.mark.parametrize(
    ("variant", "layers"),
    [
        ("gemma3", "2 attention (1 with a window of 20)"),
        ("qwen3_5", "3 recurrent, 1 attention"),
        ("qwen3_5_moe", "1 recurrent, 1 attention; 2 with experts"),
        ("nemotron_h", "1 recurrent, 1 experts, 1 attention, 1 feed-forward"),
        ("lfm2", "2 short convolution, 1 attention"),
        ("gpt_oss", "2 attention (1 with a window of 20); 2 with experts"),
    ],
)
def test_info_names_the_kinds_of_layers(variant: str, layers: str) -> None:
    rows = info_rows(tiny_checkpoint(variant))
    assert rows["layers"] == layers
    assert "next token" not in rows


def test_info_on_next_token_layers() -> None:
    dense = next_token.with_layers(*next_token.random_pair())
    sparse = nemotron_h_next_token.with_layers(*nemotron_h_next_token.random_pair())
    assert info_rows(dense)["next token"] == "1 attention"
    assert info_rows(sparse)["next token"] == "1 attention, 1 experts"


def test_a_group_without_codes_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["convert", str(folder), str(tmp_path / "out"), "--group", "64"]) == 1
    assert "--group says how --quantize makes codes" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_convert_then_use(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small"
    assert cli.main(["convert", str(folder), str(out), "--quantize", "q8"]) == 0
    printed, said = capsys.readouterr()
    assert printed == f"{out}\n"
    assert "converting the weights" in said

    assert cli.main(["info", str(out)]) == 0
    rows = {line[:15].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}
    assert rows["name"] == "small"
    assert rows["tensors"] == "9 Q8/32, 3 F32"
    assert rows["chat template"] == "yes"

    command = ["verify", str(out), "--json", "--tokens", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "BUCKETS", (8, 256))
        assert cli.main(command) == 0
    comparisons = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["difference"] for each in comparisons} == {""}

    assert cli.main(["convert", str(folder), str(out)]) == 1
    assert f"{out} exists: name a new folder, or remove it first" in one_line(
        capsys.readouterr().err
    )


def test_pull_prints_where_a_model_lies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_verify_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer programs to compile than a server has.
    monkeypatch.setattr(step, "BUCKETS", (8, 256))
    assert cli.main(["verify", str(folder), "--json", "--tokens", "2"]) == 0
    out, err = capsys.readouterr()
    comparisons = [json.loads(line) for line in out.splitlines()]
    assert len(comparisons) >= 60
    assert all(set(each) == {"name", "compared", "difference"} for each in comparisons)
    assert {each["difference"] for each in comparisons} == {""}
    assert f"{len(comparisons)} comparisons, 0 differences" in one_line(err)


def test_verify_exits_with_1_at_a_difference(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Comparison("step in 8 rows", 7), Comparison("rope", 3, "2 rows differ")]
    monkeypatch.setattr(verify_module, "verify", lambda *arguments: iter(found))
    monkeypatch.setattr(cli, "_step_functions", lambda *arguments, **named: (None, None))
    assert cli.main(["verify", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == "same   step in 8 rows (7)\nDIFFERS: 2 rows differ rope (3)\n"
    assert "2 comparisons, 1 differences" in one_line(err)


@pytest.mark.parametrize("as_json", [False, True])
def test_stress_that_is_interrupted_tells_what_it_compared(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def run(self, seconds: float, seed: int) -> Iterator[tuple[None, Outcome]]:
            for _ in range(3):
                yield None, Outcome(replies=2, drafted=5, accepted=4, cached=0, preempted=1)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(console, "_STATUS_SECONDS", 0.0)
    asked = cli._parser().parse_args(["verify", "--stress", "9"] + ["--json"] * as_json)
    assert cli._stress(Interrupted(), asked) == 130
    out, err = capsys.readouterr()
    if as_json:
        assert json.loads(out) == {
            "rounds": 3,
            "replies": 6,
            "drafted": 15,
            "accepted": 12,
            "cached": 0,
            "preempted": 3,
            "difference": "",
        }
    else:
        assert out == (
            "rounds 3, replies 6, drafted 15, accepted 12, cached 0, preempted 3: no difference\n"
        )
    assert err.startswith("comparing: rounds ")


def test_a_context_the_model_does_not_have(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", str(folder), "--context", "513", "--port", "0"]) == 1
    message = "tensorfold: --context 513 is more than the model's 512"
    assert capsys.readouterr().err.splitlines()[-1] == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "bench --prompt 510 --tokens 8 --streams 1,2",
            "--prompt 510 with --tokens 8 and 2 --streams needs a context of ",
        ),
        ("verify --tokens 600", "--tokens 600 needs a context of "),
    ],
)
def test_what_takes_more_context_than_the_model_has(
    arguments: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *more = arguments.split()
    assert cli.main([command, str(folder), *more]) == 1
    said = one_line(capsys.readouterr().err)
    assert said.startswith(f"tensorfold: {message}")
    assert said.endswith("and the model's is 512: ask for less")


def test_a_port_in_use_is_said_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "no-such-model", "--port", str(port)]) == 1
    message = f"tensorfold: port {port} on 127.0.0.1 is in use: try --port"
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    "flag", ["--context 99", "--activations int8", "--draft-model x", "--no-drafts"]
)
def test_a_chat_with_a_server_takes_no_engine_options(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["chat", "127.0.0.1:1", *flag.split()]) == 1
    name = flag.split()[0]
    assert one_line(capsys.readouterr().err) == (
        f"tensorfold: {name} is for a model that is loaded here: leave it out, or give it to the "
        "server at http://127.0.0.1:1"
    )
    assert cli.main(["chat", "127.0.0.1:1"]) == 1
    assert "can't talk to http://127.0.0.1:1" in one_line(capsys.readouterr().out)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--port", port])
    assert "argument --port" in capsys.readouterr().err


class Server(NamedTuple):
    process: subprocess.Popen[str]
    url: str


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`tensorfold serve` on any free port."""
    command = [sys.executable, "-m", "tensorfold.cli", "serve", str(folder), "--port", "0"]
    command += ["--parallel", "3", "--context", "256", "--name", "tiny", "--alias", "small"]
    environment = os.environ | {"TENSORFOLD_HOME": str(tmp_path_factory.mktemp("home"))}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "ready after" in line:
            break
    assert said and "ready after" in said[-1], "".join(said)
    assert any("3 replies at once, 256 tokens each, " in line for line in said)
    try:
        yield Server(process, said[-1].split()[0])
    finally:
        process.kill()
        process.communicate()


def test_serve_answers_openai_clients_and_stops(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="any")
    assert [model.id for model in client.models.list()] == ["tiny", "small"]

    messages = [{"role": "user", "content": "Hello, world"}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": 20, "seed": 3, "temperature": 1.0}
    whole = client.chat.completions.create(**asked)
    assert whole.model == "tiny"
    assert whole.usage.prompt_tokens > len("Hello, world")
    assert 1 <= whole.usage.completion_tokens <= 20
    events = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    pieces = [choice.delta.content or "" for event in events for choice in event.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    other = client.chat.completions.create(**asked | {"seed": 4})
    assert other.choices[0].message.content != whole.choices[0].message.content

    first, again = (
        client.completions.create(
            model="small", prompt=[1, 2, 3], max_tokens=200, extra_body={"ignore_eos": True}
        )
        for _ in range(2)
    )
    assert first.model == "small"
    assert first.usage.completion_tokens == 200
    assert first.choices[0].finish_reason == "length"
    assert first.choices[0].text == again.choices[0].text
    assert first.tensorfold["token_sha"] == again.tensorfold["token_sha"]

    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt="x" * 300)
    assert error.value.code == "context_length_exceeded"
    assert "maximum context length is 256 tokens" in error.value.message
    assert "The server's --context may allow up to 512" in error.value.message

    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/health") as answer:
        health = json.load(answer)
    assert health["status"] == "ok"
    assert health["max_batch_size"] == 3
    assert health["live"]["connections"] == 0

    client.close()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
