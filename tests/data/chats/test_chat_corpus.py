import gzip
import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from data.chats.chat_folders import CHATML, learnt, make, read

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.chat_corpus import ChatSource, has_chats, load_chats, rows_of, sides_of
from p2pswarm.data.samples.target_marks import BEGIN, IDS
from p2pswarm.data.samples.whole_corpus import whole
from p2pswarm.data.sources import files_of
from p2pswarm.settings.train_config import TrainConfig


def rows(count: int = 40) -> list[dict]:
    return [
        {
            "id": number,
            "messages": [
                {"role": "user", "content": f"What is {number} + {number}?"},
                {"role": "assistant", "content": f"It is {2 * number}."},
            ],
        }
        for number in range(count)
    ]


def lines(path: Path, found: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def packed_lines(path: Path, found: list[dict]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in found).encode()))
    return path


def parquet(path: Path, found: list[dict]) -> Path:
    pa.parquet.write_table(pa.Table.from_pylist(found), path)
    return path


def arrow(path: Path, found: list[dict]) -> Path:
    table = pa.Table.from_pylist(found)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    return path


KINDS = {"a.jsonl": lines, "a.jsonl.gz": packed_lines, "a.parquet": parquet, "a.arrow": arrow}


def source_of(path: Path, folder: Path, *, share: float = 0.2) -> ChatSource:
    train = TrainConfig(data=path, held_out_share=share)
    tokenizer, template = read(make(folder))
    return ChatSource(train, files_of(path), tokenizer, template)


def stored(path: Path, tmp_path: Path) -> list[bytes]:
    documents = source_of(path, tmp_path / "tokenizer").documents()
    return [(one.held_out, one.written, one.text_bytes) for one in documents]


def test_every_kind_of_file_has_the_same_documents_on_the_same_sides(tmp_path):
    found = [stored(write(tmp_path / name, rows()), tmp_path) for name, write in KINDS.items()]

    assert found == [found[0]] * len(KINDS)
    assert 0 < sum(held_out for held_out, *_ in found[0]) < 40
    sides = [held_out for held_out, _ in sides_of(files_of(tmp_path / "a.jsonl"), 0.2)]
    assert sides == [held_out for held_out, *_ in found[0]]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_nulls_inside_of_a_row_have_no_say_on_its_side(tmp_path, name):
    """A column has the fields of all its objects; lines may write them as null, or leave them."""
    found = [
        {"messages": [each | {"name": None, "tool_calls": None} for each in row["messages"]]}
        for row in rows()
    ]
    found[0]["messages"][0]["name"] = "Ann"
    found[0]["messages"][1]["tool_calls"] = [{"name": "add"}]
    files = [KINDS[kind](tmp_path / kind, found) for kind in (name, "a.jsonl")]

    columns, written = (list(sides_of(files_of(file), 0.2)) for file in files)

    assert columns == written
    plain = lines(tmp_path / "plain.jsonl", [{"messages": row["messages"]} for row in rows()])
    assert written[1:] == list(sides_of(files_of(plain), 0.2))[1:]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_give_a_call_no_arguments_of_other_rows(tmp_path, name):
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "say", "arguments": {"b": "x"}}]
    found = [{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in calls]

    read_back = [row for _, row in rows_of(KINDS[name](tmp_path / name, found))]

    assert [row["messages"][0]["tool_calls"][0] for row in read_back] == calls


def test_what_is_trained_on_are_the_answers(tmp_path):
    source = source_of(lines(tmp_path / "a.jsonl", rows()), tmp_path / "tokenizer")

    corpus = load_chats(source, cache=tmp_path / "cache", seed=1, shape=(2, 63))
    made = whole(corpus, padding=4)

    assert made.counted
    rows_there = len(made.train_side.rows)
    answers = {
        answer
        for number in range(rows_there)
        for answer in learnt(made.sample(number), source.tokenizer)
    }
    held_out = set(learnt(made.held_out[:].astype(int) & ~BEGIN, source.tokenizer))
    assert answers | held_out == {f"It is {2 * number}.<|im_end|>" for number in range(40)}
    assert not answers & held_out


def test_prepared_chats_are_read_again_and_another_template_makes_others(tmp_path, monkeypatch):
    path, cache = lines(tmp_path / "a.jsonl", rows()), tmp_path / "cache"
    source = source_of(path, tmp_path / "tokenizer")
    first = load_chats(source, cache=cache, seed=1, shape=(2, 63))

    def unread(self):
        yield 1 / 0

    monkeypatch.setattr(ChatSource, "documents", unread)

    assert load_chats(source, cache=cache, seed=1, shape=(2, 63)).digest() == first.digest()

    template = tmp_path / "other"
    make(template, "{{ bos_token }}" + source.template.text)
    other = ChatSource(source.train, source.found, *read(template))
    with pytest.raises(ZeroDivisionError):
        load_chats(other, cache=cache, seed=1, shape=(2, 63))


def test_other_special_tokens_of_a_template_are_another_text(tmp_path):
    """The same template and tokenizer; its configuration names another token."""
    path, cache = lines(tmp_path / "a.jsonl", rows()), tmp_path / "cache"
    folder = make(tmp_path / "tokenizer", "{{ bos_token }}" + CHATML)
    texts = []
    for bos in ("<s>", "</s>"):
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": bos}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer, template = read(folder)
        source = ChatSource(TrainConfig(data=path), files_of(path), tokenizer, template)
        corpus = load_chats(source, cache=cache, seed=1, shape=(2, 63))
        texts.append(tokenizer.written([int(corpus.train[:1][0]) & IDS]))

    assert texts == ["<s>", "</s>"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"messages": [{"role": "user"', "row 41: not JSON"),
        ("[1, 2]", "row 41: not an object"),
        ('{"messages": [], "messages": []}', "row 41: has two fields 'messages': remove one"),
        (
            '{"messages": [{"role": "user", "role": "assistant", "content": "x"}]}',
            "row 41: has two fields 'role': remove one",
        ),
        (
            '{"messages": "[{\\"role\\": \\"user\\", \\"role\\": \\"assistant\\"}]"}',
            "row 41: its 'messages' has two fields 'role': remove one",
        ),
        ('{"messages": "\0"}', "row 41: has NUL bytes, as a file that a crash cut short"),
        (b'{"messages": "\xff"}', "row 41: not UTF-8: write the file in UTF-8"),
        ('{"text": "hello"}', "row 41: it has no 'messages'"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "row 41: the assistant says nothing"),
    ],
)
def test_a_row_that_is_wrong_is_named_by_its_number(tmp_path, row, why):
    path = lines(tmp_path / "a.jsonl", rows())
    with path.open("ab") as file:
        file.write((row if isinstance(row, bytes) else row.encode()) + b"\n")

    with pytest.raises(Unusable, match=f"a.jsonl: {why}"):
        list(source_of(path, tmp_path / "tokenizer").documents())


@pytest.mark.parametrize(
    "row",
    [
        '{"messages": [{"role": "user", "content": "a \\ud83d b"}, ANSWER]}',
        '{"prompt": "a \\ud83d b", "completion": "x"}',
        '{"messages": "[{\\"role\\": \\"user\\", \\"content\\": \\"a \\\\ud83d b\\"}, TEXT]"}',
    ],
)
def test_halves_of_characters_become_question_marks_which_is_said_once(tmp_path, caplog, row):
    answer = '{"role": "assistant", "content": "x"}'
    row = row.replace("ANSWER", answer).replace("TEXT", answer.replace('"', '\\"'))
    path = tmp_path / "a.jsonl"
    path.write_text(f"{row}\n" * 2)
    source = source_of(path, tmp_path / "tokenizer")

    documents = list(source.documents())

    ids = np.frombuffer(documents[0].written, dtype="<u4") & IDS
    assert "a ? b" in source.tokenizer.written(ids.tolist())
    (said,) = caplog.messages
    assert "a.jsonl" in said
    assert said.endswith("ud83d is half a character: such become question marks")


def test_fields_that_nobody_reads_may_stand_twice(tmp_path):
    found = [json.dumps(row)[:-1] + ', "a": {"b": 1, "b": 2}, "a": 3}\n' for row in rows(3)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(found))

    assert len(list(source_of(path, tmp_path / "tokenizer").documents())) == 3


def test_a_chat_without_a_tokenizer_asks_for_one(tmp_path):
    path = lines(tmp_path / "a.jsonl", rows())
    source = ChatSource(TrainConfig(data=path), files_of(path), None, None)

    with pytest.raises(Unusable, match=r"row 1: it is a chat, .* set train\.tokenizer"):
        list(source.documents())


def test_completions_need_no_template(tmp_path):
    found = [{"prompt": f"{n}+{n}=", "completion": f"{2 * n}"} for n in range(40)]
    path = lines(tmp_path / "a.jsonl", found)
    source = ChatSource(TrainConfig(data=path, held_out_share=0.2), files_of(path), None, None)

    made = whole(load_chats(source, cache=tmp_path / "cache", seed=1, shape=(2, 31)), 0)

    assert len(made.train_side.rows) + len(made.held_out_side.rows) < 20


def test_which_files_have_chats(tmp_path):
    for name, write in KINDS.items():
        assert has_chats(files_of(write(tmp_path / name, rows(3))), "text")
    both = [{"text": "hello", "messages": []}]
    assert not has_chats(files_of(lines(tmp_path / "b.jsonl", both)), "text")
    (tmp_path / "c.csv").write_text("prompt,completion\n1,2\n")
    assert not has_chats(files_of(tmp_path / "c.csv"), "text")


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_two_columns_of_one_name_are_no_chats_and_the_text_names_them(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    columns = [pa.array(["one"]), pa.array(["other"])]
    table = pa.Table.from_arrays(columns, names=["text", "text"])
    if ending == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)

    assert not has_chats(files_of(path), "text")


def test_columns_that_nobody_reads_are_not_read(tmp_path):
    path = parquet(tmp_path / "a.parquet", rows(2))

    assert [sorted(row) for _, row in rows_of(path)] == [["messages"]] * 2


def test_one_side_without_a_row_is_refused(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    source = source_of(lines(tmp_path / "a.jsonl", rows(1)), tmp_path / "tokenizer")

    with pytest.raises(Unusable, match=r"nothing is (held out|trained on)"):
        load_chats(source, cache=tmp_path / "cache", seed=1, shape=(2, 63))
