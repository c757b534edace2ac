"""The client's side of SCRAM, against the example of RFC 7677 and a wrong server."""

import pytest

from headrace.client.core.scram import ScramClient, ScramError

CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")


def test_the_exchange_of_the_rfc():
    scram = client()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.step(CHALLENGE) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    "said", [b"e=invalid-proof", CHALLENGE.replace(b"rOpr", b"xxxx"), CHALLENGE.replace(b"i=4096", b"i=1")]
)
def test_a_refusal_and_a_cheat_end_the_exchange(said):
    with pytest.raises(ScramError):
        client().step(said)


def test_a_server_that_does_not_know_the_password_is_found_out():
    scram = client()
    scram.step(CHALLENGE)
    with pytest.raises(ScramError):
        scram.step(b"v=AAAA")
