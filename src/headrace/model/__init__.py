"""Types that every package uses: ids, errors with Kafka's codes, the clock interface. Imports no other package."""
