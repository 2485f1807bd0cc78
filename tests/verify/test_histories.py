"""Claims about histories in files: nothing is lost, Jepsen's are understood, and ``--history`` checks them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.checker.log import find_anomalies
from einmal.types import TopicPartition
from einmal.verify.histories.check import check_history
from einmal.verify.histories.edn import EdnValue, EdnWrong, Keyword, parse, write
from einmal.verify.histories.files import HistoryUnreadable, read_history, write_edn, write_json
from einmal.verify.verdict import RunVerdict
from tests.checker.random_histories import random_history
from tests.cli.running import invoke

X = TopicPartition("x", 0)

GREEN = """
{:type :invoke, :f :send, :value [[:send 3 "a"]], :process 0, :time 1, :index 0}
{:type :ok, :f :send, :value [[:send 3 [7 "a"]]], :process 0, :time 2, :index 1}
{:type :invoke, :f :txn, :value [[:poll] [:send 4 "b"]], :process 1, :time 3, :index 2}
{:type :ok, :f :txn, :value [[:poll {3 [[7 "a"]]}] [:send 4 [0 "b"]]], :process 1, :time 5, :index 3}
{:type :info, :f :kill, :value nil, :process :nemesis, :time 6, :index 4}
{:type :invoke, :f :poll, :value [[:poll]], :process 2, :time 7, :index 5}
{:type :ok, :f :poll, :value [[:poll {4 [[0 "b"]]}]], :process 2, :time 8, :index 6}
"""

_SENDS = "{:process 0, :type :invoke, :f :send, :value [[:send :x 0] [:send :x 1] [:send :x 2] [:send :x 3]]}"
_SENT = (
    "{:process 0, :type :ok, :f :send, :value [[:send :x [0 0]] [:send :x [1 1]] [:send :x [2 2]] [:send :x [3 3]]]}"
)


def _read(process: int, *offsets: int, outcome: str = "ok", f: str = "txn") -> str:
    polled = " ".join(f"[{offset} {offset}]" for offset in offsets)
    return (
        f"{{:process {process}, :type :invoke, :f :{f}, :value [[:poll]]}}\n"
        f"{{:process {process}, :type :{outcome}, :f :{f}, :value [[:poll {{:x [{polled}]}}]]}}"
    )


JEPSENS: dict[str, tuple[list[str], set[str]]] = {
    "green": ([GREEN], set()),
    "a transaction that was aborted is read again": (
        [_SENDS, _SENT, _read(1, 0), _read(1, 1, 2, outcome="fail"), _read(1, 1, 2), _read(1, 3)],
        set(),
    ),
    "a conflict with a write of unknown outcome": (
        [
            "{:process 0, :type :invoke, :f :send, :value [[:send :x 1] [:send :y 1]]}",
            "{:process 0, :type :info, :f :send, :value [[:send :x [0 1]] [:send :y 1]]}",
            "{:process 1, :type :invoke, :f :send, :value [[:send :x 2]]}",
            "{:process 1, :type :ok, :f :send, :value [[:send :x [0 2]]]}",
            "{:process 2, :type :ok, :f :poll, :value [[:poll {:x [[0 2]]}]]}",
        ],
        set(),
    ),
    "two sends got one offset": (
        [
            "{:type :invoke, :f :send, :value [[:send 11 641]], :time 280153467070, :process 379}",
            "{:type :ok, :f :send, :value [[:send 11 [537 641]]], :time 280169754615, :process 379}",
            "{:type :invoke, :f :send, :value [[:send 11 645]], :time 283654729962, :process 363}",
            "{:type :ok, :f :send, :value [[:send 11 [537 645]]], :time 287474569112, :process 363}",
            "{:type :ok, :f :poll, :value [[:poll {11 [[537 641]]}]], :time 288474569112, :process 1}",
            "{:type :ok, :f :poll, :value [[:poll {11 [[537 645]]}]], :time 289474569112, :process 2}",
        ],
        {"inconsistent-offsets"},
    ),
    "a failed write is read": (
        [
            "{:process 0, :type :fail, :f :send, :value [[:send :x 2]]}",
            "{:process 1, :type :ok, :f :poll, :value [[:poll {:x [[0 2]]}]]}",
        ],
        {"G1a"},
    ),
    "later writes are read, this one is not": (
        [_SENDS, _SENT, _read(1, 0), _read(2, 2, 3)],
        {"lost-write", "torn-transaction"},
    ),
    "a reader skips what another one read": (
        [_SENDS, _SENT, _read(1, 0), _read(1, 2), _read(2, 1, 2, 3)],
        {"poll-skip", "G1b"},
    ),
    "a poll skips inside": ([_SENDS, _SENT, _read(1, 0, 2), _read(2, 1, 2, 3)], {"int-poll-skip", "G1b"}),
    "a reader goes back": (
        [_SENDS, _SENT, _read(1, 0, 1, 2), _read(1, 1, 2, 3)],
        {"nonmonotonic-poll"},
    ),
    "a reader goes back after an assignment of other partitions": (
        [
            _SENDS,
            _SENT,
            _read(1, 0, 1, 2),
            "{:process 1, :type :invoke, :f :assign, :value [:y]}",
            "{:process 1, :type :ok, :f :assign, :value [:y]}",
            _read(1, 1, 2, 3),
        ],
        set(),
    ),
    "a reader goes back after an assignment that keeps its partition": (
        [
            _SENDS,
            _SENT,
            _read(1, 0, 1, 2),
            "{:process 1, :type :ok, :f :assign, :value [:x :y]}",
            _read(1, 1, 2, 3),
        ],
        {"nonmonotonic-poll"},
    ),
    "a process sends backwards": (
        [
            "{:process 0, :type :ok, :f :send, :value [[:send :x [3 :c]]]}",
            "{:process 0, :type :ok, :f :send, :value [[:send :x [1 :a]]]}",
            "{:process 1, :type :ok, :f :poll, :value [[:poll {:x [[1 :a] [3 :c]]}]]}",
        ],
        {"nonmonotonic-send"},
    ),
    "a transaction reads its own write": (
        ["{:process 0, :type :ok, :f :txn, :value [[:send :x [0 1]] [:poll {:x [[0 1]]}]]}"],
        {"precommitted-read"},
    ),
    "a value is there twice": (
        [
            "{:process 0, :type :ok, :f :send, :value [[:send :x [0 1]]]}",
            "{:process 1, :type :ok, :f :poll, :value [[:poll {:x [[0 1] [1 1]]}]]}",
        ],
        {"duplicate"},
    ),
}


def kinds(path: Path) -> set[str]:
    return {anomaly.kind for anomaly in find_anomalies(read_history(path))}


@pytest.mark.parametrize("name", JEPSENS)
def test_a_history_of_jepsen_has_the_anomalies_that_jepsens_own_tests_expect(name: str, tmp_path: Path) -> None:
    lines, expected = JEPSENS[name]
    path = tmp_path / "history.edn"
    path.write_text("\n".join(lines))
    assert kinds(path) == expected


def test_operations_of_jepsen_are_in_the_order_of_their_invocations(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(
        "#jepsen.history.Op{:type :invoke, :f :txn, :value [[:send 1 5] [:poll]], :process 7, :time 1000000000}\n"
        '{:type :invoke, :f :send, :value [[:send "t-2" "v"]], :process 8, :time 2000000000}\n'
        '{:type :ok, :f :send, :value [[:send "t-2" [4 "v"]]], :process 8, :time 3000000000}\n'
        "{:type :fail, :f :txn, :value [[:send 1 5] [:poll {}]], :process 7, :time 4000000000, :error :aborted}\n"
    )
    first, second = read_history(path).ops
    key = TopicPartition("1", 0)
    assert first == Op(
        process=7,
        actions=(Send(key, "5"),),
        outcome=OpOutcome.FAIL,
        transactional=True,
        began=1.0,
        ended=4.0,
        cause="aborted",
    )
    assert second.actions == (Send(TopicPartition("t", 2), "v", 4),)


def history_in_order(seed: int) -> History:
    whole = random_history(seed)
    return replace(whole, ops=tuple(sorted(whole.ops, key=lambda op: op.began)))


def test_json_lines_keep_everything(tmp_path: Path) -> None:
    for seed in range(30):
        history = history_in_order(seed)
        path = tmp_path / f"{seed}.jsonl"
        write_json(history, path)
        again = read_history(path)
        assert (tuple(again.ops), again.is_read_to_the_end) == (history.ops, history.is_read_to_the_end)


def test_what_is_written_for_jepsen_has_one_operation_of_a_process_at_a_time(tmp_path: Path) -> None:
    running: dict[tuple[str, object], str] = {}
    for seed in range(30):
        path = tmp_path / f"{seed}.edn"
        history = history_in_order(seed)
        write_edn(history, path)
        times = []
        for number, line in enumerate(path.read_text().splitlines()):
            event = parse(line)
            assert isinstance(event, dict) and event["index"] == number
            times.append(event["time"])
            process = (path.name, event["process"])
            if event["type"] == "invoke":
                assert process not in running
                running[process] = str(event["f"])
            else:
                assert running.pop(process) == event["f"]
                if event["type"] == "info":
                    running[process] = "crashed"
        assert times == sorted(times)
        read = list(read_history(path).ops)
        written = [op for op in history.ops if op.read_committed]
        assert sorted(str(op.actions) for op in read) == sorted(str(op.actions) for op in written)


def test_one_process_keeps_its_order_in_jepsens_format(tmp_path: Path) -> None:
    writes = [
        Op(process=1, actions=(Send(X, value, offset),), outcome=OpOutcome.OK, began=at, ended=at + 1)
        for at, value, offset in ((0, "a", 1), (1, "b", 0))
    ]
    reads = [
        Op(process=9, actions=(Poll(X, records),), outcome=OpOutcome.OK, began=at, ended=at, starts_anew=at > 6)
        for at, records in ((6, ((0, "b"), (1, "a"))), (7, ((0, "b"), (1, "a"))))
    ]
    history = History((*writes, *reads), is_read_to_the_end=True)
    write_edn(history, tmp_path / "history.edn")
    assert kinds(tmp_path / "history.edn") == {found.kind for found in find_anomalies(history)} == {"nonmonotonic-send"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{:a [1 -2.5 "x\\ny"], "k" nil}', {"a": [1, -2.5, "x\ny"], "k": None}),
        ("#{1 2}", [1, 2]),
        ('#inst "2026-01-01"', "2026-01-01"),
        ("(:f true 12N)", ["f", True, 12]),
    ],
)
def test_edn_is_read(text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["{:a}", "[1 2", "1 2", "]", "{[1] 2}", '"open', ""])
def test_what_is_no_edn_is_refused(text: str) -> None:
    with pytest.raises(EdnWrong):
        parse(text)


def test_edn_is_written_as_it_is_read() -> None:
    value: EdnValue = {Keyword("type"): Keyword("ok"), "t-0": [[1, 'quo"te\n', None, True]]}
    text = write(value)
    assert text == '{:type :ok, "t-0" [[1 "quo\\"te\\n" nil true]]}'
    assert parse(text) == value


_EDN: Final = "{:type :ok, :f :send, :process 1, :index 4, :value [[:send 1 [0 2]]]}\n"
_JSONL: Final = '{{"einmal_history": 1}}\n{}\n'


def _op(**fields: object) -> str:
    right = {"process": 1, "outcome": "ok", "began": 0.0, "ended": 1.0, "actions": [["send", "x", 0, "a", 0]]}
    return _JSONL.format(json.dumps(right | fields))


def test_numbers_of_other_programs_are_values(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(_op(actions=[["send", "x", 0, 7, 0]]))
    (op,) = read_history(path).ops
    assert [send.value for send in op.sends] == ["7"]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("history.txt", "", ".jsonl"),
        ("history.jsonl", "", "einmal_history"),
        ("history.jsonl", '{"einmal_history": 1}\n{"process": 1}\n', ":2: not an operation"),
        ("history.jsonl", '{"einmal_history": 1}\n{', ":2: not an operation"),
        ("history.jsonl", _JSONL.format("[]"), ":2: not an operation"),
        ("history.jsonl", _JSONL.format("null"), ":2: not an operation"),
        ("history.jsonl", _op(began="0"), "'began' cannot be '0'"),
        ("history.jsonl", _op(process=True), "'process' cannot be True"),
        ("history.jsonl", _op(actions=7), "'actions' cannot be 7"),
        ("history.jsonl", _op(actions=[["send", "x", 0, "a", "5"]]), "an offset is a whole number, not '5'"),
        ("history.jsonl", _op(actions=[["send", "x", 0, "a", -1]]), "an offset is a whole number, not -1"),
        ("history.jsonl", _op(actions=[["send", 7, 0, "a", 1]]), "a topic is text, not 7"),
        ("history.jsonl", _op(actions=[["poll", "x", 0, [[1, ["a"]]]]]), "a value is text or a whole number"),
        ("history.jsonl", _op(read_commited=False), "'read_commited'; did you mean 'read_committed'?"),
        ("history.jsonl", _op(transactional="false"), "'transactional' cannot be 'false'"),
        ("history.jsonl", _op(actions=[["send", "x", 0, "a", 2**63]]), "an offset is a whole number"),
        ("history.jsonl", _op(began=2.0), "not a span of time"),
        ("history.jsonl", _op(ended=float("inf")), "not a span of time"),
        ("history.jsonl", _op(began=float("nan")), "not a span of time"),
        ("history.jsonl", _op(ended=10**400), ":2: not an operation"),
        ("history.jsonl", _JSONL.format("[" * 100_000), ":2: not an operation"),
        ("history.jsonl", _op(began=0.5) + _op().splitlines()[1], ":3: not an operation: it began at 0.0, before"),
        ("history.jsonl", _op() + _op().splitlines()[1], "operations 0 and 1, counted from 0, send 'a' to x-0"),
        ("history.edn", _EDN + _EDN, ":index 4 comes after 4"),
        ("history.edn", "{:type :ok, :f :poll, :process 1, :value [[:poll {1 [[-1 2]]}]]}", "Jepsen"),
        ("history.edn", "{:type :ok", ":1: not an operation"),
        ("history.edn", "{:type :ok, :f :txn, :process 1, :value [[:append 1 2]]}", "Jepsen"),
    ],
)
def test_a_file_that_is_no_history_is_named_with_the_line(name: str, text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(HistoryUnreadable) as refused:
        check_history(path)
    assert str(path) in str(refused.value) and named in str(refused.value)
    result = invoke(["verify", "--history", str(path)])
    assert result.exit_code == 2 and f"error: {path}" in result.output


def test_the_command_checks_a_history_without_a_cluster(tmp_path: Path) -> None:
    green = tmp_path / "green.edn"
    green.write_text(GREEN)
    result = invoke(["verify", "--history", str(green)])
    assert result.exit_code == 0 and "verdict: holds" in result.output
    red = tmp_path / "red.edn"
    red.write_text("\n".join(JEPSENS["a failed write is read"][0]) + "\n" + GREEN)
    result = invoke(["verify", "--history", str(red), "--format", "json"])
    assert result.exit_code == 1
    (found,) = json.loads(result.output)["workloads"][0]["anomalies"]
    assert (found["kind"], len(found["operations"])) == ("G1a", 2)


def test_events_that_jepsen_has_not_numbered_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(
        "".join(f"{{:type :ok, :f :send, :process 1, :index -1, :value [[:send 1 [{n} {n}]]]}}\n" for n in (0, 1))
    )
    assert len(list(read_history(path).ops)) == 2


def test_a_file_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "green.edn"
    path.write_text(GREEN)
    opened = []
    open_path = Path.open

    def noted(self: Path, *arguments: Any, **named: Any) -> Any:
        opened.append(self)
        return open_path(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", noted)
    checked = check_history(path)
    assert checked.verdict is RunVerdict.HOLDS and checked.workload.acknowledged and checked.workload.read
    assert opened == [path, path]


def test_a_history_without_its_end_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_json(History([Op(process=1, actions=(Send(X, "a", 0),), outcome=OpOutcome.OK, ended=1.0)]), path)
    result = invoke(["verify", "--history", str(path)])
    assert result.exit_code == 2 and "not read to its end" in result.output


def test_a_history_and_a_cluster_exclude_each_other(tmp_path: Path) -> None:
    result = invoke(["verify", "--history", str(tmp_path / "h.edn"), "--cluster", "einmal"])
    assert result.exit_code == 2 and "--history" in result.output
