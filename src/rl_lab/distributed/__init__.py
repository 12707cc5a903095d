"""Several processes that train one run, and what carries data between robots and a learner."""
