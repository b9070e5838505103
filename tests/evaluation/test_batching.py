"""Rows and batches against what each request reads on its own."""

from hypothesis import given
from hypothesis import strategies as st

from tlm_repro.evaluation.batching import Request, Row, batches, pack_rows

# Few different tokens, so that inputs share prefixes of every length by chance.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=6)
ITEMS = st.lists(st.tuples(TOKENS, st.lists(TOKENS, min_size=1, max_size=4)), min_size=1, max_size=6)


def read(row: Row, column: int) -> list[int]:
    """The tokens that the one in `column` sees, itself included, by the rule of stem and branches."""
    segments = row.segments()
    seen = [place for place in range(column + 1) if segments[place] in (0, segments[column])]
    assert [row.positions()[place] for place in seen] == list(range(len(seen)))
    return [row.tokens()[place] for place in seen]


@given(ITEMS, st.integers(4, 8), st.booleans())
def test_each_target_is_predicted_from_exactly_what_precedes_it(items: list, max_length: int, branching: bool) -> None:
    requests = [Request(context, option[:max_length]) for context, options in items for option in options]
    packed = pack_rows(requests, max_length, branching=branching)
    scored = set()
    for row in packed:
        assert branching or not row.tree
        for number, columns in row.columns():
            assert number not in scored
            scored.add(number)
            whole = (requests[number].context + requests[number].continuation)[-(max_length + 1) :]
            start = len(whole) - len(requests[number].continuation)
            assert [read(row, column) for column in columns] == [whole[:end] for end in range(start, len(whole))]
    assert scored == set(range(len(requests)))
    assert sum(map(len, packed)) <= sum(len(request.input(max_length)) for request in requests)


def test_options_share_their_context() -> None:
    context = list(range(10, 20))
    [row] = pack_rows([Request(context, option) for option in ([1, 2], [3, 4, 5], [6], [1, 7])], 64, branching=True)
    assert (row.stem, row.branches) == (context, [[1], [3, 4]])
    assert row.positions() == [*range(10), 10, 10, 11]
    assert dict(row.columns()) == {0: [9, 10], 1: [9, 11, 12], 2: [9], 3: [9, 10]}


def test_a_model_without_branches_shares_what_one_input_holds() -> None:
    context = list(range(10, 20))
    packed = pack_rows([Request(context, [1]), Request(context, [2]), Request(context, [3, 4])], 64, branching=False)
    assert [row.tokens() for row in packed] == [[*context, 3]]


def test_batches_stay_within_their_budget() -> None:
    lengths = [5, 30, 7, 8, 31, 90, 6]
    packed = list(batches([Row([0] * length) for length in lengths], 64))
    assert [[len(row) for row in batch] for batch in packed] == [[90], [31, 30], [8, 7, 6, 5]]
    assert sorted(length for batch in packed for length in map(len, batch)) == sorted(lengths)
