package message

// Render renders a message without headers, with a sample of the link to unsubscribe.
func (c *Compiled) Render(payload string) (Content, error) {
	made, _, err := c.RenderMessage(payload, SampleUnsubscribeURL(""))
	return made, err
}
