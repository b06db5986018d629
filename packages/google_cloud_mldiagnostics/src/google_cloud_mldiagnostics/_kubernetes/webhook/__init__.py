"""The injection webhook: a server that gives pods of labelled workloads their variables."""
