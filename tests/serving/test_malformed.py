"""A thousand malformed bodies: each is a bad request, and the server goes on."""

import json
import random

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question, read_error, whole_text
from test_api_requests import BAD_CHAT_FIELDS, BAD_FIELDS, BAD_TEXT_FIELDS

COUNT = 1000


def valid_body(draw, path):
    body = question(path) | {
        "model": "scripted",
        "temperature": draw.random(),
        "seed": draw.getrandbits(70),
        "stream": draw.random() < 0.5,
        "stop": ["é", "\n"],
        "max_tokens": draw.randint(1, 50),
    }
    items = list(body.items())
    draw.shuffle(items)
    return dict(items)


def text_of(body):
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def truncated(draw, path):
    data = text_of(valid_body(draw, path))
    return data[: draw.randint(1, len(data) - 1)]


def with_trailing_text(draw, path):
    return text_of(valid_body(draw, path)) + draw.choice([b"x", b"{}", b"]", b",", b"\x00"])


def not_an_object(draw, path):
    body = valid_body(draw, path)
    value = draw.choice([[body], "text", 3, None, True, [], json.dumps(body)])
    return text_of(value)


def invalid_utf8(draw, path):
    bad = draw.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"])
    marked = valid_body(draw, path) | {draw.choice(["model", "user", "stop"]): "@@"}
    return text_of(marked).replace(b"@@", bad + draw.choice([b"", b"a"]))


def lone_surrogate(draw, path):
    half = draw.choice([b"\\ud800", b"\\udfff", b"\\udc00\\ud800", b"\\uD83D", b"a\\ud83d\\u0041"])
    name = draw.choice(["model", "user", "prompt", "messages"])
    value = [{"role": "user", "content": "@@"}] if name == "messages" else "@@"
    key = draw.choice([name, name, "@@"])
    return text_of(valid_body(draw, path) | {key: value}).replace(b"@@", half)


def not_a_number(draw, path):
    constant = draw.choice([b"NaN", b"Infinity", b"-Infinity", b"+1", b"01", b"1.", b".5", b"0x1"])
    name = draw.choice(["temperature", "seed", "user", "top_p"])
    return text_of(valid_body(draw, path) | {name: "@@"}).replace(b'"@@"', constant)


def huge_number(draw, path):
    name = draw.choice(["seed", "max_tokens", "temperature", "top_k"])
    digits = b"9" * draw.randint(4400, 9000)
    return text_of(valid_body(draw, path) | {name: "@@"}).replace(b'"@@"', digits)


def overflowing_number(draw, path):
    name = draw.choice(["temperature", "top_p", "min_p", "seed", "max_tokens", "top_k"])
    return text_of(valid_body(draw, path) | {name: "@@"}).replace(b'"@@"', b"1e999")


def nested(draw, path):
    depth = draw.choice([200, 900, 5_000, 100_000])
    opening, closing = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
    value = opening * depth + b"1" + closing * depth
    name = draw.choice(["metadata", "messages", "prompt", "chat_template_kwargs", "stop"])
    return text_of(valid_body(draw, path) | {name: "@@"}).replace(b'"@@"', value)


def wrong_syntax(draw, path):
    data = text_of(valid_body(draw, path))
    old, new = draw.choice(
        [(b'"', b"'"), (b":", b"="), (b",", b";"), (b"{", b"("), (b"true", b"True"), (b",", b",,")]
    )
    changed = data.replace(old, new, draw.randint(1, 3))
    return changed if changed != data else data.replace(b'"', b"`")


def raw_control_character(draw, path):
    bad = bytes([draw.randint(0, 31)])
    return text_of(valid_body(draw, path) | {"user": "@@"}).replace(b"@@", b"a" + bad)


def other_encoding(draw, path):
    text = text_of(valid_body(draw, path)).decode()
    return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-32-be", "utf-8-sig", "utf-7"])) + (
        b"\xff" if draw.random() < 0.2 else b"\x00"
    )


def bad_field(draw, path):
    fields = BAD_FIELDS + (BAD_CHAT_FIELDS if path == CHAT else BAD_TEXT_FIELDS)
    return text_of(valid_body(draw, path) | dict([draw.choice(fields)]))


def bad_main_field(draw, path):
    junk = draw.choice([0, 1.5, True, {}, {"a": 1}, [None], [[]], [{}], [True], [1.5], [[1], 3]])
    body = valid_body(draw, path) | {"messages" if path == CHAT else "prompt": junk}
    return text_of(body)


def missing_main_field(draw, path):
    body = valid_body(draw, path)
    del body["messages" if path == CHAT else "prompt"]
    return draw.choice([text_of(body), b"", b" \n", b"{}"])


def bad_message(draw, path):
    if path == TEXT:
        return bad_main_field(draw, path)
    message = {"role": "user", "content": "x"}
    bad = draw.choice(
        [
            {"role": draw.choice([None, "", "USER", 3, [], {}])},
            {"content": draw.choice([3, True, {}, ["x"], [None], [{"type": "image_url"}], [[]]])},
            {"content": [{"type": "text", "text": draw.choice([None, 3, [], {}])}]},
            {"tool_calls": draw.choice([3, "x", {}, [3], [{}], [{"function": {}}]])},
        ]
    )
    return text_of(valid_body(draw, path) | {"messages": [message, message | bad]})


MUTATIONS = (
    truncated, with_trailing_text, not_an_object, invalid_utf8, lone_surrogate, not_a_number,
    huge_number, overflowing_number, nested, wrong_syntax, raw_control_character, other_encoding,
    bad_field, bad_main_field, missing_main_field, bad_message,
)  # fmt: skip


async def test_a_thousand_malformed_bodies_are_bad_requests():
    draw = random.Random(20260)
    client = Client()
    for i in range(COUNT):
        mutation = MUTATIONS[i % len(MUTATIONS)]
        path = draw.choice(ROUTES)
        data = mutation(draw, path)
        response = await client.send(path, data)
        shown = (mutation.__name__, data[:300])
        assert response.status_code == 400, (shown, await response.get_data())
        error = read_error(response.status_code, await response.get_data())
        assert error["type"] == "invalid_request_error", shown
    assert client.engine.requests == []
    for path in ROUTES:
        assert whole_text(await client.ask(path)) == "Hello"


@pytest.mark.parametrize("path", [*ROUTES, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "data",
    [b"[1]", b'{"model": "\xff"}', b'{"a": NaN}', b'{"a": "\\ud800"}', b"{", b'{"\\ud800": 1}'],
)
async def test_case_5_every_route_reads_bodies_the_same_way(path, data):
    client = Client()
    response = await client.send(path, data)
    assert read_error(response.status_code, await response.get_data())["param"] in (None, "a")


@pytest.mark.parametrize("path", ROUTES)
async def test_surrogate_pairs_are_text(path):
    client = Client()
    data = json.dumps(question(path) | {"user": "😊", "stop": "\ud83d\ude0a"}).encode()
    assert b"\\ud83d\\ude0a" in data
    assert (await client.send(path, data)).status_code == 200
