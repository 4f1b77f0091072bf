package api

// checkPower uses the calculator of samples, with the answers that the contract lists.
func (b *bundle) checkPower() {
	b.T.Helper()
	const path = "/v1/iterations/power"
	got := b.do("POST", path, object{"base_rate": 0.5, "effect": 0.25, "power": 0.9, "recipients_per_variant": 50}).is(200)
	if got.json["required_per_variant"] != 77.0 || got.json["required_total"] != 154.0 || got.json["warning"] == nil {
		b.T.Errorf("%s", got.body)
	}
	got = b.do("POST", path, object{"base_rate": 0.05, "effect": 0.01, "variants": 4}).is(200)
	if got.json["power"] != nil || got.json["smallest_effect"] != nil || got.json["warning"] != nil {
		b.T.Errorf("%s", got.body)
	}
	b.do("POST", path, object{"base_rate": 0.5, "effect": 0.5}).fault(422, "/effect", "invalid")
	b.do("POST", path, object{"base_rate": 0.5, "effect": 0}).fault(422, "/effect", "invalid")
	b.do("POST", path, object{"base_rate": 1, "effect": -0.1}).fault(422, "/base_rate", "too_large")
	b.do("POST", path, object{"base_rate": 0, "effect": 0.1}).fault(422, "/base_rate", "too_small")
	b.do("POST", path, object{"base_rate": 0.1, "effect": 0.1, "variants": 9}).fault(422, "/variants", "*")
}
