"""The operator's web page: who may do what, the requests behind it, and the operator it is to a run."""
