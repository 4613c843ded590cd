"""Which addresses the guard refuses, in all the forms they can be written in."""

from __future__ import annotations

import pytest

from crawler.fetch.guard import AddressGuard

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2001:4860:4860::8888"]
REFUSED = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.1.2.3", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "carrier"),
    ("100.127.255.255", "carrier"),
    ("169.254.169.254", "link-local"),
    ("192.0.0.8", "reserved"),
    ("192.0.2.1", "documentation"),
    ("198.18.0.1", "benchmarks"),
    ("224.0.0.1", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("fc00::1", "private"),
    ("fd12:3456::1", "private"),
    ("fec0::1", "private"),
    ("ff02::1", "multicast"),
    ("2001:db8::1", "documentation"),
    ("2001::1", "reserved"),
    ("64:ff9b:1::a01:203", "reserved"),
    ("::127.0.0.1", "reserved"),
    ("4000::1", "reserved"),
    ("example.org", "not an IP address"),
    ("", "not an IP address"),
]
# 10.1.2.3 inside IPv6: mapped, 6to4, NAT64.
EMBEDDED = ["::ffff:10.1.2.3", "::ffff:a01:203", "2002:a01:203::1", "64:ff9b::a01:203"]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert AddressGuard().refusal(address) is None


@pytest.mark.parametrize(("address", "word"), REFUSED)
def test_special_addresses_are_refused_with_their_kind(address: str, word: str) -> None:
    assert word in (AddressGuard().refusal(address) or "")


@pytest.mark.parametrize("address", EMBEDDED)
def test_private_ipv4_inside_ipv6_is_refused(address: str) -> None:
    reason = AddressGuard().refusal(address)
    assert reason == "10.1.2.3 in IPv6 form, private (10.0.0.0/8)"


@pytest.mark.parametrize("address", ["::ffff:8.8.8.8", "2002:808:808::1", "64:ff9b::808:808"])
def test_public_ipv4_inside_ipv6_passes(address: str) -> None:
    assert AddressGuard().refusal(address) is None


def test_an_allowed_network_is_exempt_and_nothing_beside_it() -> None:
    guard = AddressGuard("127.0.0.0/8, ::1/128,")
    assert guard.refusal("127.0.0.1") is None
    assert guard.refusal("::1") is None
    assert guard.refusal("::ffff:127.0.0.1") is None
    assert guard.refusal("10.0.0.1") is not None
    assert guard.refusal("::2") is not None


def test_the_setting_may_be_a_list() -> None:
    assert AddressGuard(["10.0.0.0/8"]).refusal("10.9.8.7") is None


def test_an_answer_stays_the_same_when_asked_very_often() -> None:
    guard = AddressGuard()
    for number in range(10_001):
        guard.refusal(f"8.8.{number // 256}.{number % 256}")
    assert guard.refusal("10.0.0.1") == guard.refusal("10.0.0.1") == "private (10.0.0.0/8)"


@pytest.mark.parametrize("text", ["localhost", "127.0.0.1/8", "10.0.0.0/33", "127.0.0.0/8;::1/128"])
def test_a_setting_that_cannot_be_read_names_itself(text: str) -> None:
    with pytest.raises(ValueError, match=r"ALLOW_PRIVATE_ADDRESSES holds .*; expected networks") as caught:
        AddressGuard(text)
    assert repr(text) in str(caught.value)
