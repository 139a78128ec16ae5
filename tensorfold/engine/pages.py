"""Pages and what they hold: which sequences share them, and which are kept for later ones.

The pages of everything computed form a tree for each salt. A node is a page of 64 tokens after the
pages above it, so equal paths are equal prefixes: the tokens themselves are compared, and no hash
can take one prefix for another. A page in the tree never changes. The rows that a sequence had past
its last full page stay as a node of fewer tokens; a later sequence copies the rows that it shares.

Where lanes hold state of their own, pages alone are not enough to go on from: a sequence then
shares pages only up to a node whose lane state is kept in a snapshot.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile

from tensorfold.engine.snapshots import Snapshots
from tensorfold.ops.rows import PAGE


@dataclass(eq=False)
class Node:
    """A page in the tree: `tokens` after those of its ancestors, at most 64 of them."""

    page: int
    tokens: tuple[int, ...]
    parent: "Node | None"
    children: dict[int, list["Node"]] = field(default_factory=dict)
    """By their first token."""
    holders: int = 0
    """Replies whose block tables have the page. Who holds a page holds all above it."""
    used: int = 0
    """When a reply last held it, in ticks of the pool."""

    def child(self, tokens: tuple[int, ...]) -> "Node | None":
        """The child that holds exactly these tokens."""
        return next((n for n in self.children.get(tokens[0], ()) if n.tokens == tokens), None)

    def closest(self, tokens: Sequence[int]) -> tuple["Node | None", int]:
        """The child that shares most first tokens with `tokens`, and how many."""
        best, most, wanted = None, 0, tuple(tokens)
        better = wanted[:1]
        for node in self.children.get(wanted[0], ()) if wanted else ():
            # Where many sequences begin alike, few of them share more than the best so far.
            if node.tokens[: most + 1] == better:
                pairs = zip(node.tokens, wanted, strict=False)
                best, most = node, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                better = wanted[: most + 1]
                if most == len(wanted):
                    break
        return best, most


@dataclass
class Holding:
    """The pages of one reply in the order of its block table: shared ones, then its own."""

    salt: str
    path: list[Node]
    """From the salt's root, which has no page, to the last shared page."""
    own: list[int] = field(default_factory=list)
    reserved: int = 0
    """Pages that it may still take."""
    known: int = 0
    """Positions at the start whose pages were in the tree, shared or not."""
    changed: bool = True
    """Whether `pages` are others than when this was last set to False."""

    @property
    def pages(self) -> list[int]:
        """The block table."""
        return [node.page for node in self.path[1:]] + self.own

    @property
    def shared_tokens(self) -> int:
        """Positions on shared pages."""
        return (len(self.path) - 1) * PAGE

    @property
    def tokens(self) -> int:
        """Positions on all pages."""
        return self.shared_tokens + len(self.own) * PAGE


class PagePool:
    """Every page of the state. Knows no device."""

    def __init__(self, pages: int, kept: int | None = None, snapshots: int | None = None):
        """`kept` pages at most stay for later sequences when no reply holds them; None: any, and 0:
        nothing is shared either. `snapshots`: slots for the states of lanes; None: lanes have none.
        """
        self.total = pages
        self.kept_limit = pages if kept is None else kept
        if snapshots == 0:
            self.kept_limit = 0
        self._slots = snapshots
        self.reset()

    def reset(self) -> None:
        """Forget everything; nothing may be held."""
        self._free = list(reversed(range(self.total)))
        self.snapshots = None if self._slots is None else Snapshots(self._slots)
        """By node: of the lane that had run up to the end of its page."""
        self._roots: dict[str, Node] = {}
        self._kept = 0
        self._reserved = 0
        self._tick = 0
        self._order = count()
        self._leaves: list[tuple[int, int, Node]] = []
        """A heap of (last use, order, node), with entries that no longer hold."""

    @property
    def kept(self) -> int:
        """Pages in the tree that no reply holds."""
        return self._kept

    @property
    def held(self) -> int:
        """Pages that replies hold."""
        return self.total - len(self._free) - self._kept

    @property
    def available(self) -> int:
        """Pages that may still be reserved: free or kept, and not promised to anybody."""
        return len(self._free) + self._kept - self._reserved

    def hold(self, salt: str, tokens: Sequence[int], pages: int) -> Holding | None:
        """Pages for a sequence that starts with `tokens` and takes up to `pages` pages.

        Takes the full pages that are known of all tokens but the last, or those of them up to a
        snapshot, and reserves the others.
        None if they are not available.
        """
        path = self._known(salt, tokens)
        known = (len(path) - 1) * PAGE
        self._cut_to_snapshot(path)
        idle = sum(not node.holders for node in path[1:])
        reserved = pages - (len(path) - 1)
        if idle + reserved > self.available:
            return None
        self._roots[salt] = path[0]
        path[0].holders += 1
        for node in path[1:]:
            self._take_up(node)
        self._reserved += reserved
        return Holding(salt, path, reserved=reserved, known=known)

    def fits_beside(
        self, holdings: Sequence[Holding], salt: str, tokens: Sequence[int], pages: int
    ) -> bool:
        """Whether `hold` would find its pages if these holdings were the only ones."""
        path = self._known(salt, tokens)
        self._cut_to_snapshot(path)
        held = {node for holding in holdings for node in holding.path[1:]}
        own = sum(len(holding.own) + holding.reserved for holding in holdings)
        return len(held.union(path[1:])) + own + pages - (len(path) - 1) <= self.total

    def next_shared(self, holding: Holding, tokens: Sequence[int]) -> bool:
        """Go on to a page that somebody computed meanwhile: the next 64 of `tokens`, which start
        where the shared pages end, if any token stands after them. A page of the reply's own that
        was to become this one is given back. Where lanes have state of their own, which does not go
        on by itself, nobody does."""
        if self.snapshots is not None:
            return False
        node = holding.path[-1].child(tuple(tokens[:PAGE])) if len(tokens) > PAGE else None
        if node is None or len(holding.own) > 1:
            return False
        for page in holding.own:
            self._free.append(page)
            self._give_back_reserved(holding, -1)
        holding.own.clear()
        self._take_up(node)
        holding.path.append(node)
        holding.changed = True
        self._give_back_reserved(holding, 1)
        return True

    def closest_rows(self, holding: Holding, tokens: Sequence[int]) -> tuple[int, int]:
        """The page that has most rows of `tokens`, which start where the shared pages end, and how
        many; the last token is left to be run."""
        node, shared = holding.path[-1].closest(tokens[: min(PAGE, len(tokens) - 1)])
        if node is None or self.snapshots is not None:
            return -1, 0
        node.used = self._next_tick()
        self._push(node)
        return node.page, shared

    def take(self, holding: Holding) -> int:
        """A page of the reply's own, out of those it reserved."""
        self._give_back_reserved(holding, 1)
        if not self._free:
            self._evict()
        page = self._free.pop()
        holding.own.append(page)
        holding.changed = True
        return page

    @property
    def shares(self) -> bool:
        """Whether sequences share pages at all."""
        return self.kept_limit > 0

    def share(self, holding: Holding, tokens: tuple[int, ...]) -> None:
        """The reply's first own page is full of `tokens`: put it in the tree, or, if somebody else
        computed the same meanwhile, take theirs and give this one back."""
        page = holding.own.pop(0)
        parent = holding.path[-1]
        node = parent.child(tokens)
        if node is None:
            node = self._add(parent, page, tokens)
            node.holders, node.used = 1, self._next_tick()
        else:
            self._free.append(page)
            self._take_up(node)
            holding.changed = True
        holding.path.append(node)

    def release(self, holding: Holding, rest: tuple[int, ...]) -> None:
        """Let go of a reply's pages. `rest` are the tokens on its first own page; they and the
        shared pages are kept for later."""
        self._give_back_reserved(holding, holding.reserved)
        tick = self._next_tick()
        own, parent = holding.own, holding.path[-1]
        keeps_rest = self.shares and self.snapshots is None
        if rest and own and keeps_rest and parent.closest(rest)[1] < len(rest):
            node = self._add(parent, own.pop(0), rest)
            node.used = tick
            self._kept += 1
            self._push(node)
        self._free.extend(reversed(own))
        for node in reversed(holding.path[1:]):
            node.used = tick
            node.holders -= 1
            if not node.holders:
                self._kept += 1
                self._push(node)
        while self._kept > self.kept_limit:
            self._evict()
        root = holding.path[0]
        root.holders -= 1
        self._drop_if_empty(holding.salt, root)

    def _known(self, salt: str, tokens: Sequence[int]) -> list[Node]:
        """The path of the full pages of all tokens but the last, from the salt's root."""
        path = [self._roots.get(salt) or Node(-1, (), None)]
        for start in range(0, len(tokens) - PAGE, PAGE):
            node = path[-1].child(tuple(tokens[start : start + PAGE]))
            if node is None:
                break
            path.append(node)
        return path

    def _cut_to_snapshot(self, path: list[Node]) -> None:
        """Where lanes have state of their own, leave out the pages past the last that has it."""
        if self.snapshots is not None:
            while len(path) > 1 and path[-1] not in self.snapshots:
                path.pop()

    def _give_back_reserved(self, holding: Holding, pages: int) -> None:
        holding.reserved -= pages
        self._reserved -= pages

    def _take_up(self, node: Node) -> None:
        self._kept -= not node.holders
        node.holders += 1
        node.used = self._next_tick()

    def _add(self, parent: Node, page: int, tokens: tuple[int, ...]) -> Node:
        siblings = parent.children.setdefault(tokens[0], [])
        for other in [n for n in siblings if tokens[: len(n.tokens)] == n.tokens]:
            # A tail that this page holds too. Nobody holds a tail.
            siblings.remove(other)
            self._forget(other)
        node = Node(page, tokens, parent)
        siblings.append(node)
        return node

    def _forget(self, node: Node) -> None:
        self._free.append(node.page)
        self._kept -= 1
        node.page = -1
        if self.snapshots is not None:
            self.snapshots.drop(node)

    def _evict(self) -> None:
        """Free the page used longest ago of those that nobody holds and that have none below:
        what many sequences start with goes last."""
        while True:
            used, _, node = heapq.heappop(self._leaves)
            if self._may_go(node, used):
                break
        self._forget(node)
        parent = node.parent
        assert parent is not None
        siblings = parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.tokens[0]]
        if parent.parent is None:
            salt = next(salt for salt, root in self._roots.items() if root is parent)
            self._drop_if_empty(salt, parent)
        self._push(parent)

    def _drop_if_empty(self, salt: str, root: Node) -> None:
        if not root.holders and not root.children:
            del self._roots[salt]

    def _push(self, node: Node) -> None:
        if self._may_go(node, node.used):
            heapq.heappush(self._leaves, (node.used, next(self._order), node))
            if len(self._leaves) > 2 * self.total:
                # Without evictions nothing else would take out what no longer holds.
                self._leaves = [entry for entry in self._leaves if self._may_go(entry[2], entry[0])]
                heapq.heapify(self._leaves)

    @staticmethod
    def _may_go(node: Node, used: int) -> bool:
        """Whether the node is one to evict, last used at `used`."""
        in_tree = node.page >= 0
        return in_tree and not node.holders and not node.children and node.used == used

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick
