"""Contacts and constraint rows of mujoco_warp in an order that does not depend on which thread came first.

mujoco_warp 3.17 hands out places in both lists by atomic counters. Its option `deterministic` puts sums in order, but
what would order the lists is still empty there; the solver adds along them, and last bits differ from call to call.
"""

# mypy: disable-error-code="index,attr-defined"
# (kernels are compiled by warp: its array types are not what Python's type checker takes them for)

from copy import copy
from typing import Any

import mujoco
import warp as wp

from rl_lab.core import ConfigError

CONTACT_FIELDS = (
    *("dist", "pos", "frame", "includemargin", "friction", "solref", "solreffriction", "solimp"),
    *("dim", "geom", "worldid", "type", "geomcollisionid", "adhesion"),  # efc_address is written later
)
ROW_FIELDS = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss", "Jqvel", "J")
MOST = 64  # more than MuJoCo finds between two shapes (50)
CONTACT = wp.constant(int(mujoco.mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS))  # the first of three kinds


@wp.kernel
def contact_keys(
    num_geoms: wp.int64,
    last: wp.int64,
    count: wp.array[int],
    world: wp.array[int],
    geoms: wp.array[wp.vec2i],
    nth: wp.array[int],
    keys: wp.array[wp.int64],
    places: wp.array[int],
) -> None:
    """Number contacts by world, pair of shapes and what is found of the pair."""
    i = wp.tid()
    places[i] = i
    keys[i] = last
    if i < count[0]:
        first = wp.int64(world[i]) * num_geoms + wp.int64(geoms[i][0])
        keys[i] = (first * num_geoms + wp.int64(geoms[i][1])) * wp.int64(wp.static(MOST)) + wp.int64(nth[i])


@wp.kernel
def take_contacts(
    count: wp.array[int], places: wp.array[int], source: wp.array2d[int], target: wp.array2d[int]
) -> None:
    """Copy contacts from their places."""
    i, word = wp.tid()
    if i < count[0]:
        target[i, word] = source[places[i], word]


@wp.kernel
def return_contacts(count: wp.array[int], source: wp.array2d[int], target: wp.array2d[int]) -> None:
    """Copy contacts back."""
    i, word = wp.tid()
    if i < count[0]:
        target[i, word] = source[i, word]


@wp.kernel
def rank_rows(count: wp.array[int], kinds: wp.array2d[int], names: wp.array2d[int], ranks: wp.array2d[int]) -> None:
    """Number the rows of a world by kind and by what they belong to; rows of one thing stay in their order."""
    world, row = wp.tid()
    rows = wp.min(count[world], kinds.shape[1])
    if row < rows:
        kind, name, rank = wp.min(kinds[world, row], CONTACT), names[world, row], wp.int32(0)
        for other in range(rows):
            its_kind, its_name = wp.min(kinds[world, other], CONTACT), names[world, other]
            is_same = its_kind == kind and its_name == name
            if its_kind < kind or (its_kind == kind and its_name < name) or (is_same and other < row):
                rank += 1
        ranks[world, row] = rank


@wp.kernel
def take_rows(count: wp.array[int], ranks: wp.array2d[int], source: wp.array3d[int], target: wp.array3d[int]) -> None:
    """Copy rows to where they belong."""
    world, row, word = wp.tid()
    if row < wp.min(count[world], ranks.shape[1]):
        target[world, ranks[world, row], word] = source[world, row, word]


@wp.kernel
def return_rows(count: wp.array[int], source: wp.array3d[int], target: wp.array3d[int]) -> None:
    """Copy rows back."""
    world, row, word = wp.tid()
    if row < count[world]:
        target[world, row, word] = source[world, row, word]


@wp.kernel
def follow_rows(count: wp.array[int], world: wp.array[int], ranks: wp.array2d[int], rows: wp.array2d[int]) -> None:
    """Tell contacts where their rows are now."""
    i, dim = wp.tid()
    if i < count[0] and rows[i, dim] >= 0:
        rows[i, dim] = ranks[world[i], rows[i, dim]]


def orderable(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return the model with a dense Jacobian, whose rows can be moved; the physics is the same."""
    sleeps = model.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    if model.nflex or sleeps or model.opt.integrator == int(mujoco.mjtIntegrator.mjINT_DISCRETE):
        what = "flexible bodies, bodies that sleep and the discrete integrator"
        raise ConfigError(f"environment.simulation.deterministic: the warp backend cannot repeat {what} to the bit")
    model = copy(model)
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    return model


class StableOrder:
    """Puts both lists in order wherever they are made anew.

    Args:
        model: The model on the device, which is told to call this after collisions.
        data: The worlds.
    """

    def __init__(self, model: Any, data: Any) -> None:
        self._d, self._num_geoms, count = data, model.ngeom, data.naconmax
        most = data.nworld * model.ngeom**2 * MOST
        self._last, self._bits = most, int(most).bit_length()
        self._keys, self._places = wp.empty(2 * count, dtype=wp.int64), wp.empty(2 * count, dtype=int)
        self._contacts = [_words(getattr(data.contact, name), (count,)) for name in CONTACT_FIELDS]
        shape = (data.nworld, data.njmax)
        self._rows = [_words(getattr(data.efc, name), shape) for name in ROW_FIELDS]
        self._ranks = wp.zeros(shape, dtype=int)
        self._scratch = wp.empty(max(words.size for words in (*self._contacts, *self._rows)), dtype=int)
        model.callback.contactfilter = self.order_contacts

    def order_contacts(self, _: Any, d: Any) -> None:
        """Sort the contacts of all worlds."""
        keys, places, contact = self._keys, self._places, d.contact
        sizes = [wp.int64(self._num_geoms), wp.int64(self._last)]
        found = [d.nacon, contact.worldid, contact.geom, contact.geomcollisionid]
        wp.launch(contact_keys, d.naconmax, [*sizes, *found], [keys, places])
        wp.utils.radix_sort_pairs(keys, places, d.naconmax, end_bit=self._bits)
        for words in self._contacts:
            kept = self._room(words)
            wp.launch(take_contacts, words.shape, [d.nacon, places, words], [kept])
            wp.launch(return_contacts, words.shape, [d.nacon, kept], [words])

    def order_rows(self) -> None:
        """Sort the constraint rows of each world."""
        d, ranks = self._d, self._ranks
        wp.launch(rank_rows, ranks.shape, [d.nefc, d.efc.type, d.efc.id], [ranks])
        for words in self._rows:
            kept, shape = self._room(words), (*ranks.shape, words.shape[2])
            wp.launch(take_rows, shape, [d.nefc, ranks, words], [kept])
            wp.launch(return_rows, shape, [d.nefc, kept], [words])
        wp.launch(
            follow_rows, d.contact.efc_address.shape, [d.nacon, d.contact.worldid, ranks], [d.contact.efc_address]
        )

    def _room(self, words: Any) -> Any:
        """Return scratch memory in the shape of `words`."""
        return wp.array(ptr=self._scratch.ptr, dtype=int, shape=words.shape, device=words.device)


def _words(array: Any, lead: tuple[int, ...]) -> Any:
    """Return an array of 4-byte numbers as [*lead, words] integers, the same memory; rows may be padded."""
    lead = (*lead[:-1], array.shape[len(lead) - 1])
    number = 1
    for size in lead:
        number *= size
    words = array.size * wp.types.type_size_in_bytes(array.dtype) // 4 // number
    return wp.array(ptr=array.ptr, dtype=int, shape=(*lead, words), device=array.device)
