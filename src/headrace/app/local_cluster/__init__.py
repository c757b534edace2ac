"""app.local_cluster: the brokers of `headrace cluster up` on one host."""
