"""bench: headrace and Apache Kafka 4.3 measured side by side, by the same clients, in one run.

__main__    the command line                        cases/      what is measured, a family a file
runner      who runs when: pairs, rounds, samples   clients     load.c, connections.c, Kafka's own tools
brokers     a node to measure, whoever made it      kafka, headrace_node    the two kinds
processes   started and stopped by pid              proc        CPU and memory from /proc
tools       compilers, Java, Maven, Kafka's jars    ledger      every figure, medians, ratios
targets     what must be reached                    report, plot, machine   what people read
"""
