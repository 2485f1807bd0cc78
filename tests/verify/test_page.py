"""The evidence page of a long run: faults are counted by kind, and each of them is still there."""

from __future__ import annotations

import re

from einmal.evidence.page import document, table
from einmal.verify.evidence import NotedFault
from einmal.verify.page import faults


def test_a_few_faults_are_a_list_in_order() -> None:
    shown = faults([NotedFault(1.0, "kill -9 of broker 1"), NotedFault(2.5, "broker 1 serves again")])
    assert shown.index("1.0 s: kill -9 of broker 1") < shown.index("2.5 s: broker 1 serves again")
    assert "<details>" not in shown and "×" not in shown


def test_many_faults_are_counted_by_kind_and_listed_behind_it() -> None:
    noted = [NotedFault(float(number), f"kill -9 of broker {number % 3}", "brokers") for number in range(40)]
    noted += [NotedFault(50.0, "answer dropped: <EndTxn>, broker 12", "network")]
    noted += [
        NotedFault(60.0 + share, f"request delayed by {share} s: EndTxn, broker 1", "network") for share in (0.7, 1.9)
    ]
    noted += [NotedFault(65.0, f"clock step: that of broker 1 is {step:g} s ahead", "brokers") for step in (0.6, 412)]
    noted += [NotedFault(66.0, f"slow disk of broker 2: a flush takes {step:g} s more", "brokers") for step in (0.6, 1)]
    noted += [NotedFault(70.0, "calm")]
    shown = faults(noted)
    counts, listed = shown.split("<details>")
    assert re.findall("<h3>(.*?)</h3>", counts) == ["Brokers", "Network"]
    assert re.findall("<li>(.*?)</li>", counts) == [
        "40 × kill -9 of a broker",
        "2 × clock step: that of a broker is ahead",
        "2 × slow disk of a broker",
        "2 × request delayed: EndTxn",
        "1 × answer dropped: &lt;EndTxn&gt;",
    ]
    assert listed.count("<li>") == len(noted)
    assert "39.0 s: kill -9 of broker 0" in listed


def test_the_numbers_of_a_table_have_their_heads_on_a_phone() -> None:
    """Where six columns are side by side, the heads break within words."""
    shown = table(("workload", "read"), [("bank", "1,519,800")], numbers=1)
    assert '<td class="n" data-head="read">1,519,800</td>' in shown and "<td>bank</td>" in shown


def test_a_page_can_be_written_whatever_the_command_line_has() -> None:
    assert "<code>\\udcff</code>" in document("einmal verify: holds", "<code>\udcff</code>").encode().decode()
