"""The page pool against a plain list of what every page holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.engine.pages import Holding, Node, PagePool
from tensorfold.ops.rows import PAGE

SALT = ""


def sequence(*parts: int, length: int | None = None) -> list[int]:
    """64 tokens for each number, equal numbers giving equal tokens."""
    tokens = [part * 1000 + i for part in parts for i in range(PAGE)]
    return tokens if length is None else tokens[:length]


def fill(pool: PagePool, tokens: list[int], pages: int, salt: str = SALT) -> Holding:
    """Hold, compute and share everything of `tokens`, as the scheduler does."""
    holding = pool.hold(salt, tokens, pages)
    assert holding is not None
    while len(holding.pages) * PAGE < len(tokens):
        pool.take(holding)
    while len(tokens) >= holding.shared_tokens + PAGE:
        first = holding.shared_tokens
        pool.share(holding, tuple(tokens[first : first + PAGE]))
    return holding


def let_go(pool: PagePool, holding: Holding, tokens: list[int]) -> None:
    first = holding.shared_tokens
    pool.release(holding, tuple(tokens[first : first + PAGE]))


def test_a_second_turn_finds_every_full_page_and_the_rows_after_them() -> None:
    pool = PagePool(8)
    first = sequence(1, 2, 3, length=150)
    holding = fill(pool, first, pages=3)
    pages = holding.pages
    let_go(pool, holding, first)
    assert (pool.held, pool.kept, pool.available) == (0, 3, 8)
    turn = sequence(1, 2, 3, 4)
    again = pool.hold(SALT, turn, 4)
    assert again is not None
    assert again.pages == pages[:2]
    page, rows = pool.closest_rows(again, turn[2 * PAGE :])
    assert (page, rows) == (pages[2], 150 - 2 * PAGE)


def test_what_is_kept_for_eviction_does_not_grow_with_use() -> None:
    pool = PagePool(8)
    tokens = sequence(1, 2, 3, length=150)
    for _ in range(200):
        holding = fill(pool, tokens, pages=3)
        pool.closest_rows(holding, tokens[2 * PAGE :])
        let_go(pool, holding, tokens)
    assert pool.kept == 3
    assert len(pool._leaves) <= 2 * pool.total
    other = sequence(4, 5, 6, 7)
    let_go(pool, fill(pool, other, pages=4), other)
    assert (pool.kept, pool.available) == (7, 8)
    other = sequence(8, 9, 10)
    let_go(pool, fill(pool, other, pages=3), other)  # evicts the first, its deepest pages first
    assert (pool.kept, pool.available) == (8, 8)
    again = pool.hold(SALT, tokens, 3)
    assert again is not None and again.shared_tokens == PAGE


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), max_size=8),
    st.lists(st.integers(0, 1), max_size=6),
)
def test_the_closest_page_shares_the_most_first_tokens(
    pages: list[list[int]], tokens: list[int]
) -> None:
    root = Node(-1, (), None)
    for page, held in enumerate(pages):
        root.children.setdefault(held[0], []).append(Node(page, tuple(held), root))
    shared = [
        max(n for n in range(7) if held[:n] == tokens[:n] and n <= min(len(held), len(tokens)))
        for held in pages
    ]
    most = max(shared, default=0)
    found, rows = root.closest(tokens)
    assert rows == most
    assert (found.page if found else None) == (shared.index(most) if most else None)


def test_the_last_token_is_always_left_to_run() -> None:
    pool = PagePool(8)
    tokens = sequence(1, 2)
    let_go(pool, fill(pool, tokens, pages=2), tokens)
    again = pool.hold(SALT, tokens, 2)
    assert again is not None
    assert again.shared_tokens == PAGE
    assert pool.closest_rows(again, tokens[PAGE:])[1] == PAGE - 1


def test_prefixes_are_shared_by_holders_and_kept_once() -> None:
    pool = PagePool(30)
    system = sequence(1, 2, 3)
    holdings = [fill(pool, system + sequence(10 + i), pages=4) for i in range(10)]
    assert pool.held == 3 + 10
    assert len({tuple(holding.pages[:3]) for holding in holdings}) == 1


def test_a_page_computed_twice_is_held_once() -> None:
    pool = PagePool(4)
    tokens = sequence(1)
    first, second = (pool.hold(SALT, tokens, 1) for _ in range(2))
    assert first is not None and second is not None
    for holding in (first, second):
        pool.take(holding)
    assert pool.held == 2
    for holding in (first, second):
        pool.share(holding, tuple(tokens))
    assert pool.held == 1
    assert first.pages == second.pages


def test_what_others_computed_meanwhile_takes_the_place_of_an_own_page() -> None:
    pool = PagePool(4)
    tokens = sequence(1, 2)
    late = pool.hold(SALT, tokens, 2)
    assert late is not None
    pool.take(late)
    other = fill(pool, tokens, pages=2)
    assert pool.next_shared(late, tokens[: PAGE + 1])
    assert late.pages == other.pages[:1]
    assert late.reserved == 1
    # The second page is as long as the sequence: its last token is left to run.
    assert not pool.next_shared(late, tokens[PAGE:])


def test_salts_share_nothing() -> None:
    pool = PagePool(8)
    tokens = sequence(1, 2)
    let_go(pool, fill(pool, tokens, pages=2, salt="a"), tokens)
    other = pool.hold("b", [*tokens, 5], 3)
    assert other is not None
    assert other.pages == []
    assert pool.closest_rows(other, tokens) == (-1, 0)


def test_the_longest_unused_goes_first_and_what_many_start_with_last() -> None:
    pool = PagePool(6)
    system = sequence(1)
    for tail in (2, 3, 4):
        tokens = system + sequence(tail)
        let_go(pool, fill(pool, tokens, pages=2), tokens)
    assert pool.kept == 4
    large = fill(pool, sequence(7, 8, 9), pages=3)
    assert pool.kept == 3

    def known(*parts: int) -> int:
        holding = pool.hold(SALT, [*sequence(*parts), 0], len(parts) + 1)
        assert holding is not None
        found = holding.shared_tokens // PAGE
        pool.release(holding, ())
        return found

    assert [known(1, 2), known(1, 3), known(1, 4)] == [1, 2, 2]
    let_go(pool, large, sequence(7, 8, 9))
    fill(pool, sequence(20, 21, 22, 23, 24), pages=5)
    assert (pool.held, pool.kept) == (5, 1)
    assert pool.hold(SALT, [*system, 0], 2) is None


def test_a_pool_that_keeps_nothing_shares_nothing() -> None:
    pool = PagePool(4, kept=0)
    assert not pool.shares
    holding = pool.hold(SALT, sequence(1), 1)
    assert holding is not None
    pool.take(holding)
    pool.release(holding, tuple(sequence(1)))
    assert (pool.kept, pool.available) == (0, 4)


def test_no_more_is_kept_than_allowed() -> None:
    pool = PagePool(8, kept=2)
    tokens = sequence(1, 2, 3, 4)
    let_go(pool, fill(pool, tokens, pages=4), tokens)
    assert (pool.kept, pool.held, pool.available) == (2, 0, 8)
    again = pool.hold(SALT, tokens, 4)
    assert again is not None and again.shared_tokens == 2 * PAGE


def test_a_longer_tail_takes_the_place_of_a_shorter_one() -> None:
    pool = PagePool(8)
    for length in (10, 30, 20):
        tokens = sequence(1, length=length)
        holding = pool.hold(SALT, [], 1)
        assert holding is not None
        pool.take(holding)
        pool.release(holding, tuple(tokens))
    assert pool.kept == 1
    again = pool.hold(SALT, sequence(1), 1)
    assert again is not None
    assert pool.closest_rows(again, sequence(1))[1] == 30


@settings(max_examples=150)
@given(data=st.data(), pages=st.integers(3, 12), kept=st.none() | st.integers(0, 6))
def test_every_page_is_free_held_or_kept_and_holds_what_the_tree_says(
    data: st.DataObject, pages: int, kept: int | None
) -> None:
    pool = PagePool(pages, kept)
    memory: dict[int, tuple[int, ...]] = {}
    """What was written to each page, with everything before it."""
    running: list[tuple[Holding, list[int], int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if running and data.draw(st.booleans()):
            holding, tokens, filled = running.pop(data.draw(st.integers(0, len(running) - 1)))
            first = holding.shared_tokens
            pool.release(holding, tuple(tokens[first : min(filled, first + PAGE)]))
            continue
        parts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
        tokens = sequence(*parts, length=data.draw(st.integers(1, 3 * PAGE)))
        needed = -(-len(tokens) // PAGE) + data.draw(st.integers(0, 1))
        holding = pool.hold(data.draw(st.sampled_from(["", "salt"])), tokens, needed)
        if holding is None:
            assert needed > pool.available or pool.shares
            continue
        for index, page in enumerate(holding.pages):
            assert memory[page] == (holding.salt, *tokens[: (index + 1) * PAGE])
        filled = data.draw(st.integers(holding.shared_tokens, len(tokens)))
        while len(holding.pages) * PAGE < filled:
            page = pool.take(holding)
            end = len(holding.pages) * PAGE
            memory[page] = (holding.salt, *tokens[:end])
        while pool.shares and filled >= holding.shared_tokens + PAGE:
            first = holding.shared_tokens
            pool.share(holding, tuple(tokens[first : first + PAGE]))
        running.append((holding, tokens, filled))
        held = [page for each, _, _ in running for page in each.pages]
        assert len(set(held)) == pool.held
        assert 0 <= pool.available <= pages
    for holding, _, _ in running:
        pool.release(holding, ())
    assert (pool.held, pool.available) == (0, pages)
    assert kept is None or pool.kept <= kept


def test_reset_forgets_everything() -> None:
    pool = PagePool(4)
    let_go(pool, fill(pool, sequence(1, 2), pages=2), sequence(1, 2))
    pool.reset()
    assert (pool.kept, pool.held, pool.available) == (0, 0, 4)
    again = pool.hold(SALT, sequence(1, 2), 2)
    assert again is not None and again.pages == []


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_more_than_there_is_is_not_promised(pages: int) -> None:
    pool = PagePool(2)
    holding = pool.hold(SALT, [1], pages)
    assert (holding is None) == (pages > 2)
