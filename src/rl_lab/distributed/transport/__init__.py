"""Steps from robots to a learner and weights back: nothing lost, nothing twice, no stranger let in."""
