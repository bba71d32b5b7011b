"""The versions that lead to the newest record, in a chain that goes back and on again."""

from run.chain.harness import back, chain_of, commit, revote, state_of

from p2pswarm.run.chain.chain import Branch, ChainHead
from p2pswarm.run.chain.record import digest


def branch_of(*records) -> Branch:
    branch = Branch()
    for record in records:
        branch.append(record)
    return branch


def test_each_record_makes_a_version_and_names_the_state_of_the_one_before():
    _, records = chain_of(3)

    branch = branch_of(*records)

    assert [branch.made(v) for v in range(5)] == [None, *map(digest, records), None]
    assert [branch.states(v) for v in range(4)] == [(state_of(v),) for v in range(3)] + [None]


def test_what_was_taken_back_is_unknown_until_it_is_made_again():
    chain, records = chain_of(4)
    backward = back(chain.head, 2)

    branch = branch_of(*records, backward)

    assert branch.made(2) == digest(records[1])
    assert branch.states(2) == (state_of(2),)
    assert branch.made(3) is branch.states(3) is None
    again = commit(ChainHead.of(backward))
    branch.append(again)
    assert branch.made(3) == digest(again) != digest(records[2])


def test_a_record_of_voters_makes_no_version():
    chain, records = chain_of(3)
    only = revote(chain.head)

    branch = branch_of(*records, only)
    assert [branch.made(v) for v in range(5)] == [None, *map(digest, records), None]
    assert branch.states(3) is None

    again = commit(ChainHead.of(only))
    branch.append(again)
    assert branch.made(4) == digest(again)
    assert branch.states(3) == (state_of(3),)


def test_a_back_to_the_newest_version_names_its_state():
    chain, records = chain_of(3)

    branch = branch_of(*records, back(chain.head, 3))

    assert branch.states(3) == (state_of(3),)
    assert branch.made(3) == digest(records[2])
