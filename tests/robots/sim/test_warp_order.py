"""Contacts and rows that came in any order are put into the same one. Runs on a GPU, else with LAB_TEST_WARP=1."""

import mujoco
import numpy as np
import pytest

from rl_lab.core import ConfigError
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.scene import Physics, compile_scene
from rl_lab.robots.sim import make_sim
from tests.robots.sim.test_warp import DEVICE, controls, needs_warp, run

WORLDS = 4
CONTACT = ("dist", "pos", "frame", "friction", "solimp", "dim", "geom", "worldid", "type", "geomcollisionid")
ROW = ("type", "id", "pos", "D", "aref", "frictionloss", "Jqvel", "J")


def moved(cone):
    """Return a simulation of worlds that stand and fall, and how many contacts and rows it has."""
    model = compile_scene(quadruped(), None, Physics(cone=cone))
    sim = make_sim(model, WORLDS, backend="warp", device=DEVICE, deterministic=True)
    run(sim, controls(model, 30, WORLDS))
    return sim, int(sim._d.nacon.numpy()[0]), sim._d.nefc.numpy()


def arrays(owner, names):
    return {name: getattr(owner, name).numpy().copy() for name in names}


@needs_warp
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_shuffled_rows_come_back_and_contacts_know_where(cone):
    sim, contacts, counts = moved(cone)
    efc, contact = sim._d.efc, sim._d.contact
    rows, addresses = arrays(efc, ROW), contact.efc_address.numpy().copy()
    shuffled, new_addresses = {name: values.copy() for name, values in rows.items()}, addresses.copy()
    rng = np.random.default_rng(0)
    for world, count in enumerate(counts):
        owners = list(zip(rows["type"][world, :count], rows["id"][world, :count], strict=True))
        order = [row for i in rng.permutation(len(set(owners))) for row in _rows_of(owners, i)]
        for name, values in rows.items():
            shuffled[name][world, :count] = values[world, order]
        place = np.argsort(order)
        own = (contact.worldid.numpy() == world) & (np.arange(len(addresses)) < contacts)
        new_addresses[own] = np.where(addresses[own] >= 0, place[np.maximum(addresses[own], 0)], -1)
    assert any((shuffled["J"][world, :count] != rows["J"][world, :count]).any() for world, count in enumerate(counts))
    for name, values in shuffled.items():
        getattr(efc, name).assign(values)
    contact.efc_address.assign(new_addresses)
    sim._order.order_rows()
    for name, values in arrays(efc, ROW).items():
        for world, count in enumerate(counts):
            assert (values[world, :count] == rows[name][world, :count]).all(), name
    assert (contact.efc_address.numpy()[:contacts] == addresses[:contacts]).all()


def _rows_of(owners, index):
    """Return the rows of the `index`-th owner, in their order."""
    wanted = list(dict.fromkeys(owners))[index]
    return [row for row, owner in enumerate(owners) if owner == wanted]


@needs_warp
def test_shuffled_contacts_come_back():
    sim, count, _ = moved("pyramidal")
    contact = sim._d.contact
    before = arrays(contact, CONTACT)
    order = np.random.default_rng(1).permutation(count)
    for name, values in before.items():
        values = values.copy()
        values[:count] = values[order]
        getattr(contact, name).assign(values)
    assert (contact.geom.numpy()[:count] != before["geom"][:count]).any()
    sim._order.order_contacts(sim._m, sim._d)
    for name, values in arrays(contact, CONTACT).items():
        assert (values[:count] == before[name][:count]).all(), name


@needs_warp
def test_what_cannot_be_ordered_is_refused():
    model = mujoco.MjModel.from_xml_string('<mujoco><option><flag sleep="enable"/></option></mujoco>')
    with pytest.raises(ConfigError, match=r"simulation\.deterministic: the warp backend cannot repeat .* sleep"):
        make_sim(model, 2, backend="warp", device=DEVICE, deterministic=True)
