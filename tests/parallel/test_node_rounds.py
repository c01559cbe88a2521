"""The rounds that nodes agree on: when one is complete, in which order, and when it must end."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.parallel.node_rounds import (
    NodePlan,
    Round,
    host_of,
    must_change,
    node_name,
    node_rank_of,
    parse_round,
    round_text,
    with_node,
)

PLAN = NodePlan(fewest=2, most=3, replaces_lost=True)


def after(state: Round, *nodes: str, lost: frozenset[str] = frozenset(), quiet: bool = False, plan=PLAN) -> Round:
    """Return the round after these nodes have asked to join, one after the other."""
    for node in nodes:
        state = with_node(state, node, lost=lost, plan=plan, quiet=quiet)
    return state


def test_a_first_round_waits_for_most_nodes_and_after_a_while_for_the_fewest():
    assert not after(Round(), "b-x-1", "b-y-2").is_complete
    assert after(Round(), "b-x-1", "b-y-2", quiet=True).members == ("b-x-1", "b-y-2")
    assert not after(Round(), "b-x-1", quiet=True).is_complete
    assert after(Round(), "b-z-3", "b-x-1", "a-y-2").members == ("a-y-2", "b-x-1", "b-z-3")


def test_a_node_that_comes_late_waits_until_the_others_begin_the_next_round():
    state = after(Round(), "x", "y", quiet=True)
    state = after(state, "late")
    assert (state.members, state.waiting) == (("x", "y"), ("late",))
    assert must_change(state, 0, lost=set(), plan=PLAN)
    state = after(state, "y", "late")
    assert not state.is_complete
    state = after(state, "x")
    assert (state.number, state.is_complete, state.members, state.waiting) == (1, True, ("x", "y", "late"), ())


def test_the_next_round_needs_no_lost_node():
    state = after(Round(), "x", "y", "z")
    assert must_change(state, 0, lost={"z"}, plan=PLAN)
    assert not must_change(state, 0, lost={"z"}, plan=NodePlan(fewest=2, most=3)), "only where restarts are allowed"
    state = after(state, "y")
    assert not after(state, "x").is_complete, "z may still come"
    assert after(state, "x", lost=frozenset({"z"})).members == ("x", "y")


def test_there_is_no_round_of_fewer_nodes_than_asked_for():
    state = after(Round(), "x", "y", quiet=True)
    assert not after(state, "x", lost=frozenset({"y"}), quiet=True).is_complete


def test_a_full_round_does_not_end_for_another_node():
    state = after(Round(), "x", "y", "z", "late")
    assert state.waiting == ("late",)
    assert not must_change(state, 0, lost=set(), plan=PLAN)
    assert must_change(state, 0, lost={"x"}, plan=PLAN)


def test_new_nodes_begin_a_round_where_all_others_are_lost():
    state = after(Round(), "x", "y", "z")
    state = after(state, "new", "other", lost=frozenset({"x", "y", "z"}), quiet=True)
    assert (state.number, state.is_complete, state.members) == (1, True, ("new", "other"))


def test_numbered_nodes_keep_their_ranks():
    plan = NodePlan(fewest=3, most=3, replaces_lost=True)
    names = [node_name(rank, f"h-{rank}", "t", is_first=False) for rank in (2, 0, 1)]
    assert [node_rank_of(node) for node in after(Round(), *names, plan=plan).members] == [0, 1, 2]
    assert [host_of(node) for node in sorted(names)] == ["h-0", "h-1", "h-2"]
    assert node_rank_of(node_name(None, "h", "t", is_first=True)) is None


def test_the_state_is_a_text_that_gives_it_back():
    state = after(after(Round(), "x", "y", "z"), "x", "late")
    assert parse_round(round_text(state)) == state


@given(st.one_of(st.binary(max_size=80), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["number", "is_complete", "is_closed", "members", "expected", "waiting", "x"]), inner),
).map(lambda value: __import__("json").dumps(value).encode())))  # fmt: skip
def test_any_other_text_is_no_round(text):
    state = parse_round(text)
    assert state is None or parse_round(round_text(state)) == state


def one_look(state: Round, node: str, trained: dict[str, int], **options) -> Round:
    """Return the round after a node has looked at it, and note the round that it trains in."""
    plan, lost = options["plan"], options["lost"]
    is_in = state.is_complete and node in state.members
    if is_in and state.number == trained[node] and not must_change(state, trained[node], lost=lost, plan=plan):
        return state
    if not (is_in and state.number > trained[node]):
        state = with_node(state, node, **options)
    if state.is_complete and node in state.members:
        trained[node] = state.number
    return state


@given(st.data())
def test_any_order_of_arrivals_ends_in_a_round_that_all_nodes_agree_on(data):
    """Nodes come, leave for the next round and are lost in any order; those that live end up in one complete round."""
    nodes = ["a-h0-0", "b-h1-1", "b-h2-2", "b-h3-3"]
    plan = NodePlan(fewest=1, most=3, replaces_lost=True)
    state = Round()
    lost: set[str] = set()
    for _ in range(data.draw(st.integers(0, 12))):
        node = data.draw(st.sampled_from(nodes))
        if data.draw(st.booleans()) and len(lost) < 3:
            lost.add(node)
        elif node not in lost:
            state = with_node(state, node, lost=lost, plan=plan, quiet=data.draw(st.booleans()))
    living = [node for node in nodes if node not in lost]
    trained = dict.fromkeys(living, -1)
    for _ in range(12):
        before = state
        for node in living:
            state = one_look(state, node, trained, lost=lost, plan=plan, quiet=False)
        if state == before and not state.is_complete:  # nobody has come for a while
            state = one_look(state, living[0], trained, lost=lost, plan=plan, quiet=True)
    assert state.is_complete
    assert set(state.members) <= set(living)
    assert len(state.members) == min(len(living), plan.most)
