"""bench: headrace and Apache Kafka 4.3 measured side by side, by the same clients, in one run.

The files:

    __main__    the command line                        plan        how much, how often, on whom
    runner      who runs when: pairs, rounds, samples   cases/      what is measured, a family a file
    brokers     a node to measure, whoever made it      kafka, headrace_node    the two kinds
    clients     the C programs, Kafka's tools           topics      made and removed by the admin API
    processes   started and stopped by pid              proc        CPU and memory from /proc
    tools       compiler, Java, Maven, Kafka's jars     local_brokers   LocalBroker many times in a row
    ledger      every figure, medians, ratios           targets     what must be reached
    report, plot, machine, quantity                     what people read
    progress    what the person at the terminal sees
"""
