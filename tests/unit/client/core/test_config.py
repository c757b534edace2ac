"""Who a client says it is, by the names of other clients."""

from headrace.client.core.config import SecurityConfig, security_from


def test_a_client_without_security_says_nothing():
    assert SecurityConfig().librdkafka() == {}


def test_certificates_and_passwords_have_librdkafkas_names():
    secured = security_from(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'ScramLoginModule required username="ann" password="secret";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "own.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert secured.librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "own.pem",
        "ssl.key.location": "own.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
